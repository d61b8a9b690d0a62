"""A tokenizer from its file, with the few calls that encoding makes of transformers' tokenizers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ultimate_embedder.errors import ModelError
from ultimate_embedder.locks import OrderedLock, Rank


class Encoded(dict[str, Any]):
    """The result of a call: token ids, and where the tokens are if that was asked for."""

    is_fast = True

    def __init__(self, values: dict[str, Any], encodings: Sequence[Any]) -> None:
        super().__init__(values)
        self.encodings = list(encodings)


class FileTokenizer:
    """Reads `tokenizer.json`; truncates and pads on the right."""

    is_fast = True
    padding_side = "right"
    truncation_side = "right"

    def __init__(self, path: Path, pad_token_id: int, max_tokens: int) -> None:
        from tokenizers import Tokenizer

        try:
            self.backend_tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # its own errors are plain exceptions
            raise ModelError(f"{path} cannot be read as a tokenizer: {error}") from error
        self.backend_tokenizer.no_padding()
        self.backend_tokenizer.no_truncation()
        self.pad_token_id = pad_token_id
        self.model_max_length = max_tokens
        self._lock = OrderedLock("tokenizer", Rank.TOKENIZER)  # truncation is a state of the tokenizer
        self._truncated_at: int | None = None

    def __len__(self) -> int:
        return int(self.backend_tokenizer.get_vocab_size(with_added_tokens=True))

    def __deepcopy__(self, known: dict[int, Any]) -> FileTokenizer:
        return self  # nothing of it depends on where weights are

    def num_special_tokens_to_add(self, pair: bool = False) -> int:
        """Tokens that are put around every text."""
        return int(self.backend_tokenizer.num_special_tokens_to_add(pair))

    def __call__(
        self,
        texts: str | Sequence[str],
        *,
        truncation: bool = False,
        max_length: int | None = None,
        add_special_tokens: bool = True,
        return_offsets_mapping: bool = False,
        **_ignored: bool,  # of masks and warnings, which are not made
    ) -> Encoded:
        """Token ids of one text, or of each."""
        one = isinstance(texts, str)
        with self._lock:
            self._truncate_at(max_length if truncation else None)
            found = self.backend_tokenizer.encode_batch(
                [texts] if one else list(texts), add_special_tokens=add_special_tokens
            )
        values: dict[str, Any] = {"input_ids": [each.ids for each in found]}
        if return_offsets_mapping:
            values["offset_mapping"] = [each.offsets for each in found]
        return Encoded({name: value[0] for name, value in values.items()} if one else values, found)

    def _truncate_at(self, tokens: int | None) -> None:
        if tokens == self._truncated_at:
            return
        if tokens is None:
            self.backend_tokenizer.no_truncation()
        else:
            self.backend_tokenizer.enable_truncation(tokens)
        self._truncated_at = tokens
