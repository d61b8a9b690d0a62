"""The examination: every check in its order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from ultimate_embedder.config import hub_access
from ultimate_embedder.devices import TorchFacts, Trial, Trials
from ultimate_embedder.report.doctor import computing, packages, processor, storage, surroundings
from ultimate_embedder.report.doctor.check import Check, Examination
from ultimate_embedder.report.doctor.place import Place


def _ignore(check: Check) -> None:
    """It is in the result."""


def examine(
    output: str | Path = "",
    *,
    online: bool = False,
    cache_dir: str | Path | None = None,
    report: Callable[[Check], None] = _ignore,
    place: Place | None = None,
) -> Examination:
    """Look at this machine. Nothing is changed, and no request is made without `online`.

    `output` is a folder whose disk is measured: 32 MB are written there and removed. torch is imported in a child
    process alone, so that one that is broken is a line like any other. `report` gets each check as soon as it is made.
    """
    place = replace(place or Place(), output=Path(output), access=hub_access(cache_dir=cache_dir))
    checks: list[Check] = []
    with Trials(place.trials, place.timeout_s) as trials:
        for check in map(place.without_private, _checks(place, trials, online)):
            checks.append(check)
            report(check)
    return Examination(tuple(checks))


def _checks(place: Place, trials: Trials, online: bool) -> Iterator[Check]:
    yield from _safely("ultimate-embedder", packages.check_program)
    yield from _safely("python", packages.check_python)
    yield from _safely("packages", packages.check_packages)
    yield from _safely("extras", packages.check_extras)
    yield from _safely("cpu features", lambda: processor.check_cpu_features(place, trials))
    yield from _safely("threads", lambda: processor.check_threads(place))
    yield from _safely("memory", lambda: processor.check_memory(place))
    imported = trials.run(Trial("torch"))
    facts = imported.value if isinstance(imported.value, TorchFacts) else None
    yield from _safely("torch", lambda: computing.check_torch(imported))
    if facts is not None:
        yield from _safely("driver", lambda: computing.check_driver(place, facts))
        yield from _safely("devices", lambda: computing.check_devices(facts, trials))
    yield from _safely("model cache", lambda: storage.check_cache(place.access))
    models = list(_safely("models", lambda: storage.check_models(place.access)))
    yield from models
    yield from _safely("hub", lambda: storage.check_hub(place, online))
    yield from _safely("disk", lambda: storage.check_disk(place.output))
    yield from _safely("compiler", surroundings.check_compiler)
    yield from _safely("text", lambda: surroundings.check_text(place))
    yield from _safely("display", lambda: surroundings.check_display(place))
    yield from _safely("settings", lambda: surroundings.check_settings(place))
    has_models = all(check.state == "ok" for check in models)
    yield from _safely("kaggle", lambda: surroundings.check_kaggle(place, facts, has_models))


def _safely(name: str, look: Callable[[], Check | Iterable[Check]]) -> Iterator[Check]:
    """What a look finds. One that fails is a finding too, and the others go on."""
    try:
        found = look()
        yield from [found] if isinstance(found, Check) else found
    except Exception as error:  # noqa: BLE001 - an installation that is broken in ways that nobody thought of
        words = f"{type(error).__name__}: {error}"
        yield Check(name, "problem", f"could not be examined: {words}", packages.REINSTALL)
