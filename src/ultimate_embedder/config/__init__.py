"""What the user asked for. Only this folder reads the environment."""

from ultimate_embedder.config.declared import DeclaredOption, Option, declared_options, read_options, with_options_of
from ultimate_embedder.config.environment import OldEnvironment, devices_from_environment, old_environment
from ultimate_embedder.config.hub import HubAccess, cache_folder, hub_access, retry_policy
from ultimate_embedder.config.options import (
    BACKENDS,
    DEFAULT_MODEL,
    OLD_MODE_NAMES,
    PARALLELISMS,
    PRECISIONS,
    Backend,
    ModelChoice,
    Parallelism,
    Precision,
    RunConfig,
    parse_model_choice,
)
from ultimate_embedder.config.words import (
    at_least,
    existing_folder,
    one_of,
    parse_flag,
    parse_share,
    parse_size,
    some_words,
    split_words,
    suggest,
)

__all__ = [
    "BACKENDS",
    "DEFAULT_MODEL",
    "OLD_MODE_NAMES",
    "PARALLELISMS",
    "PRECISIONS",
    "Backend",
    "DeclaredOption",
    "HubAccess",
    "ModelChoice",
    "OldEnvironment",
    "Option",
    "Parallelism",
    "Precision",
    "RunConfig",
    "at_least",
    "cache_folder",
    "declared_options",
    "devices_from_environment",
    "existing_folder",
    "hub_access",
    "old_environment",
    "one_of",
    "parse_flag",
    "parse_model_choice",
    "parse_share",
    "parse_size",
    "read_options",
    "retry_policy",
    "some_words",
    "split_words",
    "suggest",
    "with_options_of",
]
