"""Channels of products brought to similar size, so that fewer bits are lost where neighbours share a scale.

Some channels of a transformer are tens of times as large as others. In a group that shares a scale they leave few
levels for the rest. A channel that is divided by a factor, and whose weights are multiplied by it, gives the same
product.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

LARGEST = 127
STEPS = 4  # factors per octave: coarse, so that the last digits of another machine do not change them

SAMPLE = (
    "The committee met on Tuesday to discuss the budget for the coming year, and agreed to postpone two projects.",
    "How do I read a file line by line without loading all of it into memory?",
    "Granite cools slowly below the surface, so that its crystals grow large enough to be seen with the naked eye.",
    "def merge(left, right):\n    result = []\n    while left and right:\n"
    "        source = left if left[0] < right[0] else right\n        result.append(source.pop(0))\n"
    "    return result + left + right\n",
    "Patients who received the higher dose recovered after 12 days (95% confidence interval: 9 to 15 days).",
    "## Installation\n\n1. Download the archive.\n2. Run `make install` as root.\n3. Edit `/etc/service.conf`.",
    "She closed the window, listened for a moment to the rain, and went back to her letter.",
    "Section 4.2: The tenant shall give notice in writing at least three months before the end of the term.",
    '{"id": 1843, "name": "sensor-7", "values": [0.25, 1.75, -3.5], "active": true, "updated": "2021-03-04T10:15:00Z"}',
    "best budget headphones for running",
    "SELECT city, COUNT(*) FROM orders WHERE created > '2020-01-01' GROUP BY city ORDER BY 2 DESC LIMIT 10;",
    "Die Katze sitzt auf dem Dach und wartet, bis der Regen aufhört.",
    "Le conseil a adopté la résolution à l'unanimité après trois heures de débat.",
    "The enzyme binds its substrate in a narrow cleft, which excludes water and stabilises the transition state.",
    "Quarterly revenue rose by 8.4 percent to $2.1 billion, while costs of materials fell for the third time in a row.",
    "In graph theory, a tree is a connected graph without cycles; removing any of its edges makes it disconnected.",
)
"""Texts by which the sizes of channels are measured: prose, questions, code, data, more than one language."""


def channel_factors(squares: np.ndarray, weights: Sequence[np.ndarray]) -> np.ndarray:
    """A factor for each channel, by its mean square and its weights (output x input) in all products that share it.

    Half of the difference in size between channels is left to the weights, which are rounded too.
    """
    of_weights = np.sqrt(np.square(np.concatenate(weights), dtype=np.float64).mean(0))
    ratio = np.sqrt(np.sqrt(np.maximum(squares, 1e-12)) / np.maximum(of_weights, 1e-12))
    exponents = np.log2(ratio) - np.log2(ratio).mean()
    return np.asarray(np.exp2(np.round(exponents * STEPS) / STEPS), np.float32)


def rounded(values: np.ndarray, group: int) -> np.ndarray:
    """What becomes of the inputs of a product (rows x channels) in int8, as the kernels for VNNI round them."""
    parts = values.reshape(len(values), -1, group)
    step = np.abs(parts).max(2, keepdims=True) / np.float32(LARGEST)
    per_step = np.divide(np.float32(1), step, out=np.zeros_like(step), where=step > 0)
    whole = np.clip(np.rint(parts * per_step), -LARGEST - 1, LARGEST)
    return np.asarray((whole * step).reshape(values.shape), np.float32)
