"""When a pass is better computed in fp32: too many of its vectors are unusable in fp16."""

from __future__ import annotations

SAMPLE_TEXTS = 256
MOST_UNUSABLE = 0.01  # a share; to compute more than that again on the host would take longer than all the rest


def fp16_is_too_narrow(unusable: int, begun: int, done: int, texts: int) -> bool:
    """Whether a pass over `texts` should begin again in fp32.

    `unusable` are so far, of `begun` texts: those of all windows that are at work, and what had vectors before. Not of
    those that are done, as the longest texts of a window come first, and overflow first. The share is of 256 texts at
    the least, so that one bad text says nothing. Once half of the texts are `done`, beginning again would cost more
    than it saves.
    """
    return done * 2 <= texts and unusable > MOST_UNUSABLE * max(begun, SAMPLE_TEXTS)
