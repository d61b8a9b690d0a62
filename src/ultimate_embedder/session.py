"""What a run holds open: devices, models, leases. A notebook may make several runs in one session."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ultimate_embedder.config import ModelChoice, RunConfig, SparseChoice
from ultimate_embedder.devices import (
    CpuDevice,
    Device,
    Leases,
    MemoryLimits,
    is_gone,
    open_devices,
    try_bf16,
    works_in_time,
)
from ultimate_embedder.errors import DownloadError, MissingModelError, ModelError, UsageError
from ultimate_embedder.events import (
    DeviceOpened,
    Emit,
    ModelLoaded,
    ModelLoadStarted,
    ModelMissing,
    ModelResolved,
    Warned,
    repeated,
)
from ultimate_embedder.locks import OrderedLock, Rank
from ultimate_embedder.models import (
    Encoder,
    GraphRuntime,
    check_dim,
    load_encoder,
    load_native_int8,
    load_on_backend,
    load_sparse_model,
    load_without_weights,
    products_in_bf16,
    resolve_bm25,
    resolve_model,
)
from ultimate_embedder.planning import PassPlan, plan_passes
from ultimate_embedder.stop import StopSwitch
from ultimate_embedder.types import DeviceFacts, ResolvedModel

MOST_DEATHS = 2  # a device that died this often is not tried again


@dataclass(frozen=True)
class Session:
    """Everything that the steps of a run share. Events go to the run that is going on."""

    config: RunConfig
    devices: tuple[Device, ...]
    models: tuple[tuple[ModelChoice, ResolvedModel], ...]
    resolved: tuple[ModelResolved | ModelMissing | Warned, ...]
    """How each model was found, for the summary of every run in this session."""
    sparse: tuple[tuple[SparseChoice, ResolvedModel], ...]
    """What makes sparse vectors beside them."""
    loaded: LoadedModels
    leases: Leases
    stop: StopSwitch
    emit: Emit
    faults: Faults
    may_restart: bool = True
    """Whether a fresh process may go on where every device is lost to this one."""

    def for_run(self, config: RunConfig, emit: Emit, stop: StopSwitch) -> Session:
        """The same devices and models for another run, whose events say where the models came from."""
        self.loaded.begin_run()
        for opened in map(_device_opened, self.devices):
            emit(opened)
        for event in self.resolved:
            emit(repeated(event))
        return dataclasses.replace(self, config=config, emit=emit, stop=stop)

    def device_facts(self) -> tuple[DeviceFacts, ...]:
        """The devices, and the CPU, to which work may go that they have no room for."""
        # on a cluster a device's name begins with its node's, and this machine computes nothing
        is_here = all("/" not in device.name and device.name != "cpu" for device in self.devices)
        others = [CpuDevice()] if is_here else []
        memory = [(device, device.snapshot()) for device in (*self.devices, *others)]
        return tuple(
            DeviceFacts(each.name, each.hardware, each.workers, now.total_bytes, now.ceiling_bytes)
            for each, now in memory
        )

    def devices_for(self, collection: str) -> tuple[Device, ...]:
        """The devices that a collection may use."""
        return (CpuDevice(),) if collection in self.config.force_cpu else self.devices

    def passes_for(self, collection: str | None = None) -> list[PassPlan]:
        """The passes over a collection, or over any that no option excepts."""
        alone = collection is not None and collection in self.config.no_ensemble
        device = self.devices_for(collection or "")[0]
        return plan_passes(
            self.config,
            self.models[:1] if alone else self.models,
            device.dtype(self.config.precision),
            on_cpu=not device.has_ceiling,
            has_vnni=device.has_vnni,
            sparse=self.sparse,
        )

    def find_lost(self) -> None:
        """Retire every device that does not run a kernel any more; a death may have taken others along."""
        for device in self.devices:
            if device.lost is None and not works_in_time(device, self.config.stall_timeout_s):
                device.retire("it does not run a small kernel")

    def count_lost(self) -> int:
        """How many devices are lost to this process."""
        return sum(device.lost is not None for device in self.devices)

    @property
    def all_lost(self) -> bool:
        """Whether no device can do anything more for this process."""
        return self.count_lost() == len(self.devices)

    def usable_elsewhere(self) -> tuple[str, ...]:
        """The devices that a fresh process may try: those that did not die twice, and are still in the machine."""
        if not self.may_restart:
            return ()
        return tuple(device.name for device in self.devices if self.faults.deaths(device.name) < MOST_DEATHS)

    def end_run(self) -> None:
        """Leave the devices as they were found: no model is on them, and nothing limits other code in this process."""
        self.leases.close(self.emit)
        for device in self.devices:
            device.lift_ceiling()

    def load(self, plan: PassPlan) -> Encoder:
        """The encoder of a pass, on the host; loaded unless it is."""
        return self.loaded.load(plan, plan.identity.dtype, self.config, self.emit)

    def load_apart(self, plan: PassPlan) -> Encoder:
        """The encoder of a pass, to measure it: loaded anew, and not kept."""
        return _load_encoder(plan, plan.identity.dtype, self.config, self.emit, on_torch=False, may_fuse=plan.on_cpu)

    @contextlib.contextmanager
    def fp32_alone(self, plan: PassPlan) -> Iterator[Encoder]:
        """The same in fp32 for a while; the graph of the pass is not in memory beside it."""
        self.loaded.release_graph(plan)
        try:
            yield self.load_fp32(plan)
        finally:
            if plan.backend != "torch" or plan.identity.dtype == "int8":
                self.loaded.forget_fp32(plan)

    def load_fp32(self, plan: PassPlan) -> Encoder:
        """The same model in fp32, for the CPU: for what a device cannot do, or not well."""
        return self.loaded.load(plan, "float32", self.config, self.emit, on_torch=True)


def _device_opened(device: Device) -> DeviceOpened:
    memory = device.last_snapshot
    return DeviceOpened(
        device=device.name,
        total_bytes=memory.total_bytes,
        ceiling_bytes=memory.ceiling_bytes,
        ceiling_reason=device.ceiling_reason,
        capability=device.capability,
    )


def open_session(config: RunConfig, emit: Emit, stop: StopSwitch, *, must_exist: bool = True) -> Session:
    """Open the devices and find every model; nothing is loaded yet.

    With `must_exist` False the order of devices is left aside if it names one that is not there.
    """
    return session_with(_open_devices(config, emit, must_exist=must_exist), config, emit, stop)


def _open_devices(config: RunConfig, emit: Emit, *, must_exist: bool) -> list[Device]:
    limits = MemoryLimits(config.gpu0_ceiling_bytes, config.safety_margin)
    return open_devices(
        config.devices,
        limits,
        config.device_order,
        report=lambda message: emit(Warned(message=message)),
        timeout_s=config.stall_timeout_s,
        must_exist=must_exist,
    )


def session_with(
    devices: Sequence[Device],
    config: RunConfig,
    emit: Emit,
    stop: StopSwitch,
    loaded: LoadedModels | None = None,
) -> Session:
    """A session on these devices: finds every model. `loaded` is what loads them."""
    for opened in map(_device_opened, devices):
        emit(opened)
    found = _resolve_models(config, emit)
    return Session(
        config=config,
        devices=tuple(devices),
        models=found.models,
        resolved=found.events,
        sparse=found.sparse,
        loaded=LoadedModels.on(devices) if loaded is None else loaded,
        leases=Leases(),
        stop=stop,
        emit=emit,
        faults=Faults(),
    )


@dataclass(frozen=True)
class _Found:
    models: tuple[tuple[ModelChoice, ResolvedModel], ...]
    sparse: tuple[tuple[SparseChoice, ResolvedModel], ...]
    events: tuple[ModelResolved | ModelMissing | Warned, ...]


def _resolve_models(config: RunConfig, emit: Emit) -> _Found:
    """Find every model before any work is done, so that all that are missing are known at once."""
    models: list[tuple[ModelChoice, ResolvedModel]] = []
    sparse: list[tuple[SparseChoice, ResolvedModel]] = []
    events: list[ModelResolved | ModelMissing | Warned] = []
    missing: list[MissingModelError] = []

    def tell(event: ModelResolved | ModelMissing | Warned) -> None:
        events.append(event)
        emit(event)

    chosen: list[ModelChoice | SparseChoice] = [*config.models, *config.sparse]
    for number, choice in enumerate(chosen):
        try:
            model, event = _resolve(choice, config, emit)
        except (MissingModelError, DownloadError) as error:
            if number and config.allow_missing_companions:
                tell(Warned(message=f"continuing without {error.model}: it {error.why}"))
                tell(ModelMissing(model=error.model, why=error.why))
            elif isinstance(error, DownloadError):  # at once: for the next one the hub would be waited for again
                raise (error.as_companion() if number else error) from error.__cause__
            else:
                missing.append(error.as_companion() if number else error)
        else:
            if isinstance(choice, ModelChoice):
                models.append((choice, model))
            else:
                sparse.append((choice, model))
            tell(event)
    if missing:
        raise missing[0] if len(missing) == 1 else _all_missing(missing)
    return _Found(tuple(models), tuple(sparse), tuple(events))


def _all_missing(missing: Sequence[MissingModelError]) -> ModelError:
    reasons = "; ".join(f"{error.model} {error.why}" for error in missing)
    fetch = f"Fetch them with 'ultimate-embedder models pull {' '.join(error.model for error in missing)}'"
    companions = [error.model for error in missing if error.companion]
    which = "them" if len(companions) == len(missing) else ", ".join(companions)
    otherwise = f", or continue without {which}: --allow-missing-companions" if companions else ""
    return ModelError(f"{reasons}. {fetch}, or drop --offline{otherwise}.")


def _resolve(choice: ModelChoice | SparseChoice, config: RunConfig, emit: Emit) -> tuple[ResolvedModel, ModelResolved]:
    started = time.perf_counter()
    if isinstance(choice, ModelChoice):
        model = resolve_model(choice.name, config.hub, emit)
    elif choice.bm25 is not None:
        model = resolve_bm25(choice.bm25)
    else:
        model = resolve_model(choice.model or "", config.hub, emit, kind="sparse")
    return model, resolved_event(model, time.perf_counter() - started)


def resolved_event(model: ResolvedModel, seconds: float) -> ModelResolved:
    """How a model was found."""
    return ModelResolved(
        model=model.name,
        hub_id=model.spec.hub_id if model.spec else None,
        source=model.source,
        path=str(model.path.absolute()),
        revision=model.revision,
        digest=model.digest,
        size_bytes=model.size_bytes,
        retries=model.retries,
        note=model.note,
        seconds=seconds,
    )


class Faults:
    """How often devices of a session have died, in this process and others; may be used from any thread."""

    def __init__(self, deaths: Mapping[str, int] | None = None) -> None:
        self._deaths = dict(deaths or {})
        self._known: set[int] = set()
        self._lock = OrderedLock("faults", Rank.COUNTS)

    def note(self, device: Device) -> bool:
        """Count a lost device of this process; False if it has been counted."""
        with self._lock:
            if id(device) in self._known:
                return False
            self._known.add(id(device))
        self.add(device.name, device.lost or "")
        return True

    def add(self, device: str, reason: str) -> None:
        """Count a death."""
        with self._lock:
            self._deaths[device] = self._deaths.get(device, 0) + (MOST_DEATHS if is_gone(reason) else 1)

    def deaths(self, device: str) -> int:
        """How often a device has died."""
        with self._lock:
            return self._deaths.get(device, 0)


_Key = tuple[str, str, str | None, bool]


class LoadedModels:
    """Encoders on the host, each loaded once and kept for the next collection or run; may be used from any thread."""

    def __init__(self, *, on_host: bool = False) -> None:
        """`on_host` if no weights will leave the host."""
        self._on_host = on_host
        self._loaded: dict[_Key, tuple[Encoder, ModelLoaded]] = {}
        self._announced: set[_Key] = set()
        self._lock = OrderedLock("loaded models", Rank.LOADED_MODELS)

    @classmethod
    def on(cls, devices: Sequence[Device]) -> LoadedModels:
        """Of a machine with these devices."""
        return cls(on_host=not any(device.has_ceiling for device in devices))

    def begin_run(self) -> None:
        """Say again, to the next run, what is known of a model when that run first uses it."""
        with self._lock:
            self._announced.clear()

    def release_graph(self, plan: PassPlan) -> None:
        """Free the memory of the graph of a pass, if it has one, until it is used again."""
        with self._lock:
            found = self._loaded.get((plan.name, plan.identity.dtype, plan.identity.quantization, False))
        if found is not None and isinstance(found[0].runtime, GraphRuntime):
            found[0].runtime.release()

    def forget_fp32(self, plan: PassPlan) -> None:
        """Free the weights in fp32 that were loaded beside a graph."""
        with self._lock:
            self._loaded.pop((plan.name, "float32", plan.identity.quantization, True), None)

    def forget_lost(self, devices: Sequence[Device]) -> None:
        """Load a model again when it is wanted next, if its weights are on a lost device."""
        places = {str(device.torch_device) for device in devices if device.lost is not None}
        if not places:
            return
        with self._lock:
            for key, (encoder, _) in list(self._loaded.items()):
                if places & {place for _, place in encoder.tensors_off_host()}:
                    del self._loaded[key]
                    self._announced.discard(key)

    def load(self, plan: PassPlan, dtype: str, config: RunConfig, emit: Emit, *, on_torch: bool = False) -> Encoder:
        """An encoder; `on_torch` leaves aside the backend that was asked for."""
        with self._lock:
            key = (plan.name, dtype, plan.identity.quantization, on_torch)
            if key not in self._loaded:
                emit(ModelLoadStarted(model=plan.model.name))
                self._loaded[key] = self._load(plan, dtype, config, emit, on_torch=on_torch)
            encoder, event = self._loaded[key]
            if key not in self._announced:
                self._announced.add(key)
                emit(repeated(event))
                # what it took is spent; another run has it for nothing
                self._loaded[key] = (encoder, dataclasses.replace(event, seconds=0.0))
            return encoder

    def _load(
        self, plan: PassPlan, dtype: str, config: RunConfig, emit: Emit, *, on_torch: bool
    ) -> tuple[Encoder, ModelLoaded]:
        started = time.perf_counter()
        encoder = _load_encoder(plan, dtype, config, emit, on_torch=on_torch, may_fuse=self._on_host)
        return _with_event(plan, encoder, started)


class ModelsWithoutWeights(LoadedModels):
    """The models of a machine that does not compute: their tokenizers and limits, where config files tell enough."""

    def _load(
        self, plan: PassPlan, dtype: str, config: RunConfig, emit: Emit, *, on_torch: bool
    ) -> tuple[Encoder, ModelLoaded]:
        if on_torch or plan.kind == "sparse":
            return super()._load(plan, dtype, config, emit, on_torch=on_torch)
        started = time.perf_counter()
        try:
            encoder = load_without_weights(
                plan.model,
                "float32" if dtype == "int8" else dtype,
                config.max_tokens,
                config.hub.trusted,
                token_cap=config.token_cap,
            )
        except ModelError:  # not known from its config files
            return super()._load(plan, dtype, config, emit, on_torch=on_torch)
        check_dim(plan.model, config.dim, encoder.dim)
        return _with_event(plan, encoder, started)


def _with_event(plan: PassPlan, encoder: Encoder, started: float) -> tuple[Encoder, ModelLoaded]:
    """An encoder, and the event that tells of it."""
    event = ModelLoaded(
        model=plan.model.name,
        dtype=encoder.dtype,
        dim=plan.identity.dim or encoder.dim,
        kind=plan.kind,
        max_tokens=encoder.max_tokens,
        document_prompt=encoder.document_prompt,
        tokenizer=encoder.tokenizer_kind,
        fused=encoder.fused,
        seconds=time.perf_counter() - started,
    )
    return encoder, event


def _load_encoder(
    plan: PassPlan, dtype: str, config: RunConfig, emit: Emit, *, on_torch: bool, may_fuse: bool
) -> Encoder:
    trusted, limit, cap = config.hub.trusted, config.max_tokens, config.token_cap
    if plan.kind == "sparse":
        return load_sparse_model(plan.model, dtype, limit, trusted, token_cap=cap)
    if dtype == "int8" and plan.backend == "torch":
        encoder = load_native_int8(plan.model, plan.identity.quantization or "", limit, trusted, token_cap=cap)
    elif plan.backend != "torch" and not on_torch:
        encoder = load_on_backend(
            plan.model,
            plan.backend,
            limit,
            trusted,
            int8=dtype == "int8",
            way=plan.identity.quantization,
            token_cap=cap,
        )
    elif dtype == "bfloat16" and plan.on_cpu:
        _try_bf16(emit)
        in_fp32 = load_encoder(plan.model, "float32", "cpu", limit, trusted, token_cap=cap, may_fuse=may_fuse)
        encoder = products_in_bf16(in_fp32)
    else:
        encoder = load_encoder(plan.model, dtype, "cpu", limit, trusted, token_cap=cap, may_fuse=may_fuse)
    check_dim(plan.model, config.dim, encoder.dim)
    return encoder


def _try_bf16(emit: Emit) -> None:
    """Refuse bf16 where a CPU cannot compute in it, and say so where that is slow."""
    tried = try_bf16()
    if tried.problem is not None:
        raise UsageError(f"--precision bf16: this CPU cannot compute in it ({tried.problem}). Drop --precision.")
    if tried.slowdown >= 1:
        message = (
            f"--precision bf16: a short forward takes {tried.slowdown:.1f} times as long as in fp32 here: this CPU has "
            "no fast bf16. Drop --precision."
        )
        emit(Warned(message=message))
