"""Tokenise document texts outside the model, so that it can be prefetched on another thread."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ultimate_embedder.models.canary import CANARY
from ultimate_embedder.models.loaded import TokenizedTexts

if TYPE_CHECKING:
    from ultimate_embedder.models.fused.model import SentenceModel

HEAD_CHARACTERS = (
    40  # per token of the limit; a token has about four, and white space, which may be dropped, any number
)
SPARE_TOKENS = 64
COUNTED_CHARACTERS = 1 << 20  # of a text; the tokens of a longer one are estimated from as many
BLOCK_CHARACTERS = 1 << 16  # tokenised at once to count tokens: a tokenizer takes about a hundred bytes per token
LONGEST_PIECE = 24  # characters whose tokens are counted together where a tokenizer does not say where tokens are
KNOWN_INPUTS = frozenset({"input_ids", "attention_mask", "token_type_ids"})


@dataclass(frozen=True)
class TokenSpans:
    """Characters of a text that become one token, or several: where they start, where they end, how many tokens."""

    starts: np.ndarray
    ends: np.ndarray
    counts: np.ndarray


class Tokenizer:
    """Makes the same features as sentence-transformers; if it cannot, `input_names` is empty."""

    def __init__(self, model: SentenceModel, prompt: str, max_tokens: int) -> None:
        self._tokenizer = model.tokenizer
        self._prompt = prompt
        self._max_tokens = max_tokens
        self.input_names: tuple[str, ...] = ()
        """The input tensors of the model; empty if only the model can make them."""
        self.constants: dict[str, Any] = {}
        """Other inputs of the model, the same for every batch."""
        self._learn_features(preprocess(model, CANARY, prompt))

    def tokenize(self, texts: Sequence[str]) -> TokenizedTexts:
        """Token ids of the texts, truncated at the limit; the texts and estimated lengths if it cannot tokenise."""
        if not self.input_names:
            estimated = np.array([min(len(text) // 3 + 2, self._max_tokens) for text in texts])
            return TokenizedTexts(list(texts), estimated, np.zeros(len(texts), int))
        rows, tokens_over = self._head_token_ids([self._prompt + text for text in texts])
        return TokenizedTexts(rows, np.array([len(row) for row in rows]), np.array(tokens_over, int))

    @property
    def max_tokens(self) -> int:
        """The token limit of a row."""
        return self._max_tokens

    @property
    def prompt(self) -> str:
        """What stands before every text."""
        return self._prompt

    def own_tokens(self) -> int:
        """Tokens that a row has before any of its text: the prompt, and special tokens."""
        return len(self._tokenizer(self._prompt, verbose=False)["input_ids"])

    def spans(self, text: str) -> TokenSpans:
        """Where the tokens of a text are, without prompt and special tokens."""
        if getattr(self._tokenizer, "is_fast", False):
            encoded = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
            return _merged(np.array(encoded["offset_mapping"], np.int64).reshape(-1, 2))
        places = [match.span() for match in re.finditer(rf"\S{{1,{LONGEST_PIECE}}}", text)]
        pieces = [text[start:end] for start, end in places]
        found = self._tokenizer(pieces, add_special_tokens=False, verbose=False)["input_ids"] if pieces else []
        counts = np.array([max(1, len(ids)) for ids in found], np.int64)
        edges = np.array(places, np.int64).reshape(-1, 2)
        return TokenSpans(edges[:, 0], edges[:, 1], counts)

    @property
    def size(self) -> int:
        """The number of tokens it knows."""
        return len(self._tokenizer)

    def fingerprint(self) -> str | None:
        """Equal for models with the same token ids for every text; None if unknown."""
        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        if not self.input_names or backend is None:
            return None
        settings = (self._tokenizer.truncation_side, self._max_tokens, self._prompt)
        return hashlib.sha256(f"{settings} {without_state(backend)}".encode()).hexdigest()[:16]

    @property
    def padding_ids(self) -> frozenset[int]:
        """The id that rows are padded with, if there is one."""
        padding_id = getattr(self._tokenizer, "pad_token_id", None)
        return frozenset() if padding_id is None else frozenset([padding_id])

    def pad(self, rows: Sequence[np.ndarray], length: int | None = None) -> dict[str, Any]:
        """Features of these rows, padded to `length`, or to the longest of them."""
        import torch

        length = length or max(len(row) for row in rows)
        ids = np.full((len(rows), length), self._tokenizer.pad_token_id, np.int64)
        mask = np.zeros((len(rows), length), np.int64)
        pad_left = self._tokenizer.padding_side == "left"
        for number, row in enumerate(rows):
            columns = slice(length - len(row), length) if pad_left else slice(len(row))
            ids[number, columns] = row
            mask[number, columns] = 1
        tensors = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        return {**{name: torch.from_numpy(tensors[name]) for name in self.input_names}, **self.constants}

    def example_features(self, rows: int, length: int) -> dict[str, Any]:
        """Features of a padded batch of that size; the tokens do not matter."""
        import torch

        names = self.input_names or ("input_ids", "attention_mask")
        return {**{name: torch.ones((rows, length), dtype=torch.long) for name in names}, **self.constants}

    def token_ids(self, texts: Sequence[str]) -> tuple[list[np.ndarray], list[int]]:
        """Token ids truncated at the limit, and how many tokens of each text were dropped."""
        encoded = self._tokenizer(
            list(texts),
            truncation=True,
            max_length=self._max_tokens,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,
        )
        rows = [np.array(ids, np.int32) for ids in encoded["input_ids"]]
        if encoded.is_fast:
            special = self._tokenizer.num_special_tokens_to_add(pair=False)  # every part of the rest has them again
            return rows, [sum(len(part) - special for part in encoding.overflowing) for encoding in encoded.encodings]
        whole = self._tokenizer(list(texts), verbose=False)["input_ids"]
        return rows, [len(ids) - len(row) for ids, row in zip(whole, rows, strict=True)]

    def _head_token_ids(self, texts: list[str]) -> tuple[list[np.ndarray], list[int]]:
        """Like `token_ids`, but tokenises only the beginning of a text that is much longer than the limit.

        Tokens depend only on nearby text. So if the beginning has more tokens than the limit, plus a margin, its first
        tokens are those of the whole text; otherwise the whole text is tokenised.
        """
        characters = self._max_tokens * HEAD_CHARACTERS
        if self._tokenizer.truncation_side != "right" or all(len(text) <= characters for text in texts):
            return self.token_ids(texts)
        rows, tokens_over = self.token_ids([text[:characters] for text in texts])
        for number, text in enumerate(texts):
            if len(text) > characters and tokens_over[number] < SPARE_TOKENS:
                (rows[number],), (tokens_over[number],) = self.token_ids([text])
            elif len(text) > characters:
                tokens_over[number] += self._count_tokens(text, characters)
        return rows, tokens_over

    def _count_tokens(self, text: str, start: int) -> int:
        """The tokens of a text from `start` on, block by block; estimated for what is beyond `COUNTED_CHARACTERS`."""
        stop = min(len(text), start + COUNTED_CHARACTERS)
        counted = 0
        for place in range(start, stop, BLOCK_CHARACTERS):
            block = text[place : min(place + BLOCK_CHARACTERS, stop)]
            counted += len(self._tokenizer(block, add_special_tokens=False, verbose=False)["input_ids"])
        return round(counted * (len(text) - start) / (stop - start))

    def _learn_features(self, reference: Mapping[str, Any]) -> None:
        """Find out which features the model needs, and compare ours; if they differ, the model tokenises."""
        import torch

        names = tuple(name for name, value in reference.items() if isinstance(value, torch.Tensor))
        if not {"input_ids"} <= set(names) <= KNOWN_INPUTS:
            return
        self.input_names = names
        self.constants = {name: value for name, value in reference.items() if name not in names}
        rows, _ = self.token_ids([self._prompt + text for text in CANARY])
        ours = self.pad(rows)
        if not all(torch.equal(ours[name], reference[name]) for name in names):
            self.input_names, self.constants = (), {}


def preprocess(model: SentenceModel, texts: Sequence[str], prompt: str) -> dict[str, Any]:
    """Features as sentence-transformers makes them: the reference, padded and slower."""
    return dict(model.preprocess(list(texts), prompt=prompt or None))


def _merged(offsets: np.ndarray) -> TokenSpans:
    """Spans of tokens that do not overlap: a character that is several tokens is one span."""
    offsets = offsets[offsets[:, 1] > offsets[:, 0]]
    if not len(offsets):
        return TokenSpans(offsets[:, 0], offsets[:, 1], offsets[:, 0])
    ends = np.maximum.accumulate(offsets[:, 1])
    first = np.flatnonzero(np.concatenate([[True], offsets[1:, 0] >= ends[:-1]]))
    last = np.concatenate([first[1:], [len(offsets)]]) - 1
    return TokenSpans(offsets[first, 0], ends[last], last - first + 1)


def without_state(tokenizer: Any) -> str:
    """A tokenizer as JSON, without the truncation and padding that calls leave in it."""
    described = json.loads(tokenizer.to_str())
    return json.dumps({**described, "truncation": None, "padding": None}, sort_keys=True)
