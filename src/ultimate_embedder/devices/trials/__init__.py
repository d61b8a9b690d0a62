"""What this machine can really do: tried in a child process, so that a crash is an answer."""

from ultimate_embedder.devices.trials.bf16 import Bf16Trial, try_bf16
from ultimate_embedder.devices.trials.features import FEATURES, CpuFeature
from ultimate_embedder.devices.trials.run import CHILD, TIMEOUT_S, Trials
from ultimate_embedder.devices.trials.trial import CardFacts, Forward, Outcome, TorchFacts, Trial

__all__ = [
    "CHILD",
    "FEATURES",
    "TIMEOUT_S",
    "Bf16Trial",
    "CardFacts",
    "CpuFeature",
    "Forward",
    "Outcome",
    "TorchFacts",
    "Trial",
    "Trials",
    "try_bf16",
]
