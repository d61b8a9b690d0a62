"""Give units to nodes, take results, and see that every text is dealt with whatever becomes of a node.

It knows nothing of Ray: a `Cluster` carries things there and back.
"""

from __future__ import annotations

import collections
import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from ultimate_embedder.errors import OutputError, StoppedError, TransferError, UltimateEmbedderError
from ultimate_embedder.events import Event
from ultimate_embedder.execution.cluster.node import PassFacts, Progress
from ultimate_embedder.execution.cluster.roster import (
    DESCRIBE_S,
    AnswerLostError,
    LostError,
    Member,
    NodeError,
    Roster,
    Ticket,
)
from ultimate_embedder.execution.cluster.units import PassOrder, Unit, UnitResult
from ultimate_embedder.stop import StopSwitch

IN_FLIGHT = 2  # units of a node: one that is computed, and one for when it is done
SUSPECT_DEATHS = 3  # processes that a unit has ended with before it is split, and a text alone before it is rejected
MOST_ERRORS = 3  # of a unit, on whichever node: then the error is the run's
ASK_EVERY_S = 2.0  # a node for its progress
ASK_AGAIN_S = 15.0  # a node that has not answered
POLL_S = 0.5
STOP_PATIENCE_S = 60.0  # for the batches that are under way when the run stops
FINISH_S = 10.0  # to leave the devices
BEGIN_S = 3600.0  # to download and load a model


@dataclass(frozen=True)
class Patience:
    """How long a run waits: for a node that does nothing, and for any node at all."""

    unit_s: float
    node_s: float


@dataclass
class Job:
    """One pass: its units, and what is done with their results."""

    order: PassOrder
    units: Iterator[Unit]
    take: Callable[[Unit, UnitResult, Member], str | None]
    """Store the vectors of a unit, and tell what has happened; gives why they cannot be stored."""
    reject: Callable[[Unit, str], None]
    """Do without a vector for the one text of a unit."""
    tell: Callable[[Sequence[Event], Member], None]
    """Tell what has happened on a node."""
    split: Callable[[Unit, str], None]
    """Tell that a unit is tried in halves, and why."""
    lose_answer: Callable[[Unit, str, Member], None]
    """Tell that the vectors of a unit were lost on their way, and how."""
    give_up: Callable[[int, int], None]
    """fp16 is too narrow: of so many texts so many are unusable."""
    nodes: frozenset[str] | None = None
    """The nodes that do it first; None for all."""
    again: collections.deque[Unit] = field(default_factory=collections.deque)
    suspects: collections.deque[Unit] = field(default_factory=collections.deque)
    """Units whose node was lost: they travel alone, so that it is known which one it was."""
    exhausted: bool = False
    narrow: bool = False
    """Whether fp16 is too narrow for it: it is begun again, and nothing more is done now."""

    def next(self, may_try: Callable[[Unit], bool], *, alone: bool) -> Unit | None:
        """The next unit for a node; one that is suspect only if it can be `alone` there, and the node `may_try` it."""
        if self.narrow:
            return None
        suspect = next((unit for unit in self.suspects if may_try(unit)), None) if alone else None
        if suspect is not None:
            self.suspects.remove(suspect)
            return suspect
        if self.again:
            return self.again.popleft()
        if not self.exhausted:
            unit = next(self.units, None)
            self.exhausted = unit is None
            return unit
        return None

    @property
    def has_more(self) -> bool:
        """Whether there may be units to give."""
        return not self.narrow and bool(self.again or self.suspects or not self.exhausted)


class Dispatcher:
    """Runs jobs on the nodes of a roster until all are done, or the run must stop."""

    def __init__(
        self,
        jobs: Sequence[Job],
        roster: Roster,
        stop: StopSwitch,
        patience: Patience,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._jobs = {job.order.plan.number: job for job in jobs}
        self._roster = roster
        self._stop = stop
        self._patience = patience
        self._clock = clock
        self._deaths: collections.Counter[str] = collections.Counter()
        self._splits: set[str] = set()
        """Units that are halves of others: one death is enough to halve them again."""
        self._lost_with: collections.defaultdict[str, frozenset[str]] = collections.defaultdict(frozenset)
        """The nodes that a unit was lost with."""
        self._errors: collections.Counter[str] = collections.Counter()
        self._last_member = clock()
        self._stopped_at: float | None = None

    def run(self) -> None:
        """Until every unit of every job is done; raises `StoppedError` if no node is left for too long."""
        while not self._is_over():
            self._roster.look()
            if self._stop.reason is None:
                self._hand_out()
            self._take_answers()
            self._find_silent()
            self._check_members()
        self._finish()

    def _finish(self) -> None:
        """Have the nodes leave their devices, and tell how that was; one that takes long is not waited for."""
        asked = {}
        for member in self._roster.members.values():
            if member.is_ready and not member.given and member.order is not None:
                asked[member.handle.finish()] = (member, self._job_of(member.order))
                member.order = None
        until = self._clock() + FINISH_S
        while asked and (left := until - self._clock()) > 0:
            for ticket in self._roster.cluster.wait(list(asked), min(left, POLL_S)):
                member, job = asked.pop(ticket)
                with contextlib.suppress(LostError, AnswerLostError, NodeError):  # the next pass finds out
                    job.tell(self._roster.cluster.answer(ticket), member)

    def _is_over(self) -> bool:
        busy = any(member.given for member in self._roster.members.values())
        if self._stop.reason is None:
            return not busy and not any(job.has_more for job in self._jobs.values())
        if self._stopped_at is None:
            self._stopped_at = self._clock()
            for member in self._roster.members.values():
                member.handle.stop(self._stop.reason)
        return not busy or self._clock() - self._stopped_at > STOP_PATIENCE_S

    def _hand_out(self) -> None:
        for member in self._roster.admitted:
            if member.beginning is not None:
                continue
            job = self._job_for(member)
            if job is None:
                continue
            if member.order is not job.order:
                self._begin(member, job)
                continue
            while len(member.given) < IN_FLIGHT and not self._holds_suspect(member):
                unit = job.next(partial(self._may_try, member), alone=not member.given)
                if unit is None:
                    break
                if not member.given:
                    member.moved = self._clock()
                member.given[member.handle.encode(unit)] = unit

    def _job_for(self, member: Member) -> Job | None:
        """What a node works on: its own pass as long as there are units of it, then whatever others have left."""
        current = self._jobs.get(member.order.plan.number) if member.order is not None else None
        if current is not None and current.order is member.order and (current.has_more or member.given):
            return current
        waiting = [job for job in self._jobs.values() if job.has_more]
        mine = [job for job in waiting if job.nodes is None or member.name in job.nodes]
        return min(mine or waiting, key=self._count_members, default=None)

    def _count_members(self, job: Job) -> int:
        """How many nodes work on it."""
        return sum(member.order is job.order for member in self._roster.members.values())

    def _begin(self, member: Member, job: Job) -> None:
        member.order = job.order
        member.beginning = member.handle.begin(job.order)
        member.moved = self._clock()

    def _holds_suspect(self, member: Member) -> bool:
        return any(self._is_suspect(unit) for unit in member.given.values())

    def _may_try(self, member: Member, unit: Unit) -> bool:
        """Whether a node may have a suspect unit: one that was lost with it may itself be what is broken."""
        lost_with = self._lost_with[unit.id]
        return member.name not in lost_with or all(each.name in lost_with for each in self._roster.admitted)

    def _is_suspect(self, unit: Unit) -> bool:
        return bool(self._deaths[unit.id]) or unit.id in self._splits

    def _take_answers(self) -> None:
        members = {ticket: member for member in self._roster.members.values() for ticket in member.tickets}
        if not members:
            time.sleep(min(POLL_S, self._patience.node_s))
            return
        for ticket in self._roster.cluster.wait(list(members), POLL_S):
            member = members[ticket]
            if self._roster.members.get(member.name) is not member:
                continue  # it was lost meanwhile
            if ticket == member.describing:
                self._roster.take_description(member)
            elif ticket == member.beginning:
                self._take_begun(member)
            elif ticket in member.asked:
                self._take_progress(member, ticket)
            elif ticket in member.given:
                self._take_result(member, ticket)

    def _take_begun(self, member: Member) -> None:
        ticket, member.beginning = member.beginning, None
        assert member.order is not None
        try:
            facts: PassFacts = self._roster.cluster.answer(ticket)
        except (LostError, AnswerLostError) as error:
            self._lose(member, str(error))
        except NodeError as error:
            self._refuse(member, error)
        else:
            member.moved = self._clock()
            self._job_of(member.order).tell(facts.events, member)

    def _refuse(self, member: Member, error: NodeError) -> None:
        """A node cannot run a model: it does without; if no node can, that is the error of the run."""
        self._roster.refuse(member, str(error))
        if not self._roster.members and isinstance(error.__cause__, UltimateEmbedderError):
            raise error.__cause__

    def _take_progress(self, member: Member, ticket: Ticket) -> None:
        member.asked.remove(ticket)
        with contextlib.suppress(AnswerLostError, NodeError):  # the next one tells
            try:
                progress: Progress = self._roster.cluster.answer(ticket)
            except LostError as error:
                self._lose(member, str(error))
                return
            member.asked_at = self._clock()
            if progress.batches > member.batches:  # answers may come in another order
                member.batches, member.moved = progress.batches, self._clock()
            if member.order is not None:
                self._job_of(member.order).tell(progress.events, member)

    def _take_result(self, member: Member, ticket: Ticket) -> None:
        unit = member.given[ticket]
        job = self._jobs[unit.model_pass]
        try:
            result: UnitResult = self._roster.cluster.answer(ticket)
        except LostError as error:
            self._lose(member, str(error))
            return
        except AnswerLostError as error:
            del member.given[ticket]
            self._take_lost(member, unit, str(error))
            return
        except NodeError as error:
            self._take_error(member, unit, error)
            return
        del member.given[ticket]
        if result.too_narrow is not None and not job.narrow:
            job.narrow = True
            job.give_up(*result.too_narrow)
        if job.narrow:
            return
        if problem := job.take(unit, result, member):
            self._take_again(unit, problem)
            return
        self._deaths.pop(unit.id, None)
        if result.texts == len(unit):
            self._roster.worked(member)
        elif self._stop.reason is None:  # nobody has asked it to stop: a device hangs there, for example
            left = unit.without(result.keys, job.order.plan.identity)
            job.again.extend([left] if left is not None else [])
            for each in self._roster.lose(member, "it has stopped by itself"):
                self._jobs[each.model_pass].again.append(each)

    def _take_again(self, unit: Unit, problem: str) -> None:
        """Vectors cannot be stored: they are computed again, a few times."""
        self._errors[unit.id] += 1
        if self._errors[unit.id] >= MOST_ERRORS:
            raise OutputError(
                f"{problem}. --shared-output needs an output folder that is the same on every node: drop it, and nodes "
                "send their vectors instead."
            )
        self._jobs[unit.model_pass].again.append(unit)

    def _take_lost(self, member: Member, unit: Unit, reason: str) -> None:
        """Vectors were lost on their way: they are computed again, a few times."""
        job = self._jobs[unit.model_pass]
        self._errors[unit.id] += 1
        job.lose_answer(unit, reason, member)
        if self._errors[unit.id] >= MOST_ERRORS:
            raise TransferError(
                f"the vectors of {len(unit)} texts failed {MOST_ERRORS} times; last they were lost on their way from "
                f"{member.name} ({member.node.address}): {reason}. Check the network and the memory of Ray's object "
                "store there (ray memory), then run the same command again: it resumes."
            )
        job.again.append(unit)

    def _take_error(self, member: Member, unit: Unit, error: NodeError) -> None:
        """A unit has raised: another node may do it, and this one begins anew, as nobody knows what state it is in."""
        self._errors[unit.id] += 1
        if self._errors[unit.id] >= MOST_ERRORS:
            raise error.__cause__ or error
        for each in self._roster.lose(member, str(error)):
            self._jobs[each.model_pass].again.append(each)

    def _lose(self, member: Member, reason: str) -> None:
        """A node's process is gone: others do its units. A unit that several were lost with is split."""
        held = list(member.given.values())
        known = any(self._deaths[unit.id] + 1 >= SUSPECT_DEATHS or unit.id in self._splits for unit in held)
        self._roster.lose(member, reason, suspect=known)
        for unit in held:
            self._lost_with[unit.id] |= {member.name}
            self._suspect(unit, reason)

    def _suspect(self, unit: Unit, reason: str) -> None:
        job = self._jobs[unit.model_pass]
        self._deaths[unit.id] += 1
        deaths, is_half = self._deaths[unit.id], unit.id in self._splits
        if len(unit) == 1 and deaths >= SUSPECT_DEATHS:
            job.reject(unit, f"{deaths} processes that encoded it have ended ({reason})")
        elif len(unit) > 1 and (is_half or deaths >= SUSPECT_DEATHS):
            halves = unit.halves(job.order.plan.identity)
            job.split(unit, reason)
            self._splits.update(half.id for half in halves)
            self._lost_with.update((half.id, self._lost_with[unit.id]) for half in halves)
            job.suspects.extend(halves)
        else:
            job.suspects.append(unit)

    def _find_silent(self) -> None:
        """Ask nodes how far they are; give up those that do not answer, or do nothing, for too long."""
        now = self._clock()
        for member in list(self._roster.members.values()):
            if member.describing is not None:
                if now - member.started > max(DESCRIBE_S, self._patience.unit_s):
                    self._lose(member, "its process did not start in time")
                continue
            self._ask(member, now)
            silent = bool(member.asked) and now - member.asked_at > self._patience.unit_s
            limit = BEGIN_S if member.beginning is not None else self._patience.unit_s
            stuck = bool(member.given or member.beginning is not None) and now - member.moved > limit
            if silent:
                self._lose(member, f"it has not answered for {self._patience.unit_s:g} s")
            elif stuck:
                self._lose(member, f"it has finished no batch for {limit:g} s")

    def _ask(self, member: Member, now: float) -> None:
        """Ask a node for its progress every few seconds; one that does not answer is asked again from time to time.

        A connection that broke at the other end alone is found only when something is sent.
        """
        if not member.asked and now - member.asked_at > ASK_EVERY_S:
            member.asked_at = now
        elif not member.asked or now - member.asked_again_at <= ASK_AGAIN_S:
            return
        member.asked.append(member.handle.progress())
        member.asked_again_at = now

    def _check_members(self) -> None:
        """Stop, resumably, where there was no node for too long."""
        now = self._clock()
        if self._roster.members:
            self._last_member = now
        elif self._stop.reason is None and now - self._last_member > self._patience.node_s:
            refused = "; ".join(f"{name}: {why}" for name, why in self._roster.refusals.items())
            reason = f"no node was there for {self._patience.node_s:g} s (--ray-wait)"
            self._stop.stop(f"{reason}; {refused}" if refused else reason)
            raise StoppedError(self._stop.reason or reason)

    def _job_of(self, order: PassOrder) -> Job:
        job = self._jobs.get(order.plan.number)
        return job if job is not None else next(iter(self._jobs.values()))
