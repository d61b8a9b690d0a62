"""How far one pass is, and how long it will take."""

from __future__ import annotations

from ultimate_embedder.events import PassStarted
from ultimate_embedder.report.live.recent import Recent, whole
from ultimate_embedder.report.live.rows import PassRow, PassState
from ultimate_embedder.report.live.sentences import shown
from ultimate_embedder.types import node_of

MOST_DEVICES = 256
SPAN_S = 30.0
PATIENCE_S = 60.0  # for the next batch, before the time left grows
ETA_SPAN_S = 300.0  # windows begin with their longest texts: over a shorter time rates go up and down


class PassProgress:
    """Adds up the events of a pass."""

    def __init__(self, collection: str | None, model: str, number: int) -> None:
        self.model = model
        self.state: PassState = "waiting"
        self.fingerprint: str | None = None
        self.done = 0
        self.texts = 0
        self.tokens = 0
        self._collection, self._model, self._number = shown(collection), shown(model), number
        self._devices: tuple[str, ...] = ()
        self._dtype = ""
        self._stored = 0
        self._unusable = 0
        self._restarts = 0
        self._began: float | None = None
        self._ended: float | None = None
        self._from_share, self._from_done = 0.0, 0
        self._tokenized_texts = self._tokenized_tokens = 0
        self._encoded_texts = self._encoded_tokens = 0
        self._batch_rows = self._planned_rows = self._batch_tokens = 0
        self._recent_tokens, self._recent_texts = Recent(), Recent()

    def begin(self, event: PassStarted, devices: tuple[str, ...], dtype: str, reached: float, at: float) -> None:
        """It begins, goes on or begins again; it was `reached` before."""
        if self.state == "running":
            self._restarts += 1
        self.state, self.fingerprint = "running", event.fingerprint
        self._devices, self._dtype = devices, dtype
        self.texts = whole(event.texts)
        self._stored = self.done = self._from_done = min(whole(event.stored_texts), self.texts)
        self._from_share = max(reached, self.done / self.texts if self.texts else 1.0)
        self._unusable = 0
        self._tokenized_texts = self._tokenized_tokens = 0
        self._encoded_texts = self._encoded_tokens = 0
        self._began, self._ended = self._began if self._began is not None else at, None

    def note_device(self, device: str) -> None:
        """A device of a node that joined later works on it too."""
        if device not in self._devices and node_of(device) is not None and len(self._devices) < MOST_DEVICES:
            self._devices += (device,)

    def tokenize(self, texts: int, tokens: int) -> None:
        """A window of texts was tokenised."""
        self._tokenized_texts += whole(texts)
        self._tokenized_tokens += whole(tokens)

    def encode(self, texts: int, unusable: int, tokens: int, begin: float, end: float) -> None:
        """So many texts have their vector, and others will have none."""
        self.done = min(self.texts, self.done + whole(texts))
        self._unusable += whole(unusable)
        self.tokens += whole(tokens)
        self._encoded_texts += whole(texts) + whole(unusable)
        self._encoded_tokens += whole(tokens)
        self._recent_tokens.add(whole(tokens), begin, end)
        self._recent_texts.add(whole(texts), begin, end)

    def note_batch(self, rows: int, planned_rows: int, tokens: int) -> None:
        """The size of the latest batch."""
        self._batch_rows, self._planned_rows, self._batch_tokens = whole(rows), whole(planned_rows), whole(tokens)

    def finish(self, at: float) -> None:
        """It has ended, at its end or not."""
        self.state, self._ended = "finished", at

    def complete(self) -> None:
        """Every text that can have a vector has one."""
        self._from_share = 1.0

    @property
    def has_work(self) -> bool:
        """Whether it runs, and has texts left: a pass that is done may have to wait for others."""
        return self.state == "running" and self.done + self._unusable < self.texts

    @property
    def share(self) -> float:
        """How far it is. Where it began again, what was reached stays, and the rest is what is left to do now."""
        left = self.texts - self._from_done
        moved = min(1.0, (self.done + self._unusable - self._from_done) / left) if left > 0 else 1.0
        begun = self.state != "waiting"
        return min(1.0, self._from_share + (1.0 - self._from_share) * moved) if begun else self._from_share

    def row(self, now: float) -> PassRow:
        """The pass at this moment."""
        end = self._ended if self._ended is not None else now
        running = self.state == "running"
        return PassRow(
            collection=self._collection,
            model=self._model,
            number=self._number,
            state=self.state,
            devices=self._devices,
            dtype=self._dtype,
            texts=self.texts,
            done=self.done,
            stored=self._stored,
            share=self.share,
            tokens=self.tokens,
            tokens_per_second=self._rate(self._recent_tokens, now) if running else self._mean(self.tokens, end),
            texts_per_second=self._rate(self._recent_texts, now) if running else self._mean(self._encoded_texts, end),
            eta_seconds=self._eta(now) if self.has_work else None,
            batch_rows=self._batch_rows,
            planned_rows=self._planned_rows,
            batch_tokens=self._batch_tokens,
            restarts=self._restarts,
            seconds=max(0.0, end - self._began) if self._began is not None else 0.0,
        )

    def _rate(self, recent: Recent, now: float) -> float:
        return recent.rate(now, SPAN_S, SPAN_S if self.has_work else 0.0)

    def _mean(self, amount: int, end: float) -> float:
        return amount / max(end - self._began, 1e-3) if self._began is not None and amount else 0.0

    def _eta(self, now: float) -> float | None:
        """Seconds that the tokens which are left will take; of texts that nobody has tokenised, the mean is assumed."""
        rate = self._recent_tokens.rate(now, ETA_SPAN_S, PATIENCE_S)
        quiet = now - self._recent_tokens.ended
        passed = quiet if quiet <= PATIENCE_S else 0.0  # of the time that the batch under way takes
        if not rate or not self._encoded_texts:
            return None
        left = max(0, self.texts - self.done - self._unusable)
        if not self._tokenized_texts:
            return max(0.0, left * self._encoded_tokens / self._encoded_texts / rate - passed)
        waiting = max(0, self.texts - self._from_done - self._tokenized_texts)
        mean = self._tokenized_tokens / self._tokenized_texts
        tokens = max(0, self._tokenized_tokens - self._encoded_tokens) + waiting * mean
        return max(0.0, tokens / rate - passed)
