"""When a pass is better computed in fp32: too many of its vectors are unusable in fp16."""

from __future__ import annotations

SAMPLE_TEXTS = 256
MOST_UNUSABLE = 0.01  # a share; to compute more than that again on the host would take longer than all the rest


def fp16_is_too_narrow(before: int, now: int, unusable: int, texts: int) -> bool:
    """Whether a pass over `texts` should begin again in fp32.

    `before` of them had vectors before the last batch, which had `now`; `unusable` are so far. The share is of 256
    texts at the least: one bad text says nothing, and three say enough, whatever the others of the 256 will be. Once
    half of the texts are done, beginning again would cost more than it saves.
    """
    if before * 2 > texts:
        return False
    return unusable > MOST_UNUSABLE * max(before + now, SAMPLE_TEXTS)
