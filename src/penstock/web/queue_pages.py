"""The routes of the error queue. They show row values, so all of them need the token, whatever else may be read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from starlette.convertors import Convertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from penstock.apply.error_queue import ErrorEntry
from penstock.errors import OperatorError, RetryableError
from penstock.pipeline.errors import ChangePage, ShownEntry, checked_note
from penstock.text import count
from penstock.web.edits import can_edit, kind_of
from penstock.web.jobs import Job
from penstock.web.queue import CHANGES, Queue, QueueFilter, place_text
from penstock.web.threads import in_thread

if TYPE_CHECKING:
    from penstock.web.site import Site


class ActionName(Convertor[str]):
    """What a path may name to be done: all else leads nowhere."""

    regex = "retry|delete|hold|release"

    def convert(self, value: str) -> str:
        """Return the name."""
        return value

    def to_string(self, value: str) -> str:
        """Return the name."""
        return value


_SOON_S = 1.5
"""Most actions are over by then, and their result is shown at once."""

_HISTORY = 100

_QUESTIONS = {
    "dry": "Dry run of {}?",
    "retry": "Retry {}?",
    "delete": "Give up {}?",
    "hold": "Put {} on hold?",
    "release": "Release {}?",
}


register_url_convertor("action", ActionName())


class QueuePages:
    """List, entry, actions and history."""

    def __init__(self, site: Site) -> None:
        """Show the queues of a site's pipelines."""
        self._site = site
        self._queues = {name: Queue(watcher, site.jobs[name]) for name, watcher in site.watchers.items()}

    async def list_(self, request: Request) -> Response:
        """List the queue, page by page."""
        name, queue = self._of(request)
        wanted = QueueFilter.of(request.query_params)
        page = await in_thread(queue.page, wanted, request.query_params)
        return self._page(
            request,
            "errors.html",
            name,
            page=page,
            wanted=wanted,
            named=queue.named,
            place_text=place_text,
            groups=queue.groups(),
        )

    async def show(self, request: Request) -> Response:
        """Show one entry, and what it would find at the target now."""
        name, queue = self._of(request)
        page = ChangePage(CHANGES, _number(request.query_params.get("change", "")))
        found = await in_thread(lambda: queue.errors().show(request.path_params["entry"], page))
        history = await in_thread(_history_of, queue, found.entry.id)
        return self._page(
            request,
            "entry.html",
            name,
            found=found,
            entry=found.entry,
            history=history,
            is_editing="edit" in request.query_params,
            named=queue.named,
            kind_of=kind_of,
            can_edit=can_edit,
            **_changes(found),
        )

    async def history(self, request: Request) -> Response:
        """List what people did with the queue."""
        name, queue = self._of(request)
        actions = await in_thread(lambda: queue.errors().history(most=_HISTORY))
        return self._page(request, "history.html", name, actions=actions[::-1], most=_HISTORY)

    async def act(self, request: Request) -> Response:
        """Retry, edit, delete, hold or release one entry."""
        name, queue = self._of(request)
        form, entry_id = await self._site.form(request), request.path_params["entry"]
        action = request.path_params["action"]
        if action == "retry":
            job = await in_thread(queue.retry, entry_id, form)
        elif action == "hold":
            job = queue.hold([entry_id], form.get("note", ""))
        elif action == "release":
            job = queue.release([entry_id])
        elif "confirmed" not in form:
            entry, _ = await in_thread(lambda: queue.errors().load(entry_id))
            what = f"Give up transaction {entry.id}?"
            return self._confirm(request, name, what, {}, [entry])
        else:
            job = queue.delete([entry_id])
        return await self._result(name, job)

    async def act_on_all(self, request: Request) -> Response:
        """Act on all entries that fit a filter; the number is said, and asked about, first."""
        name, queue = self._of(request)
        form = await self._site.form(request)
        wanted, action = QueueFilter.of(form), request.path_params["action"]
        if action == "hold":
            checked_note(form.get("note", ""))
        # What has failed since then was not asked about.
        last = _number(form["confirmed"]) or 0 if "confirmed" in form else None
        chosen, skipped = await in_thread(queue.chosen, action, wanted, last)
        if last is None:
            question = _QUESTIONS["dry" if "dry" in form else action].format(count(len(chosen), "transaction"))
            return self._confirm(request, name, question, form, chosen, skipped=skipped)
        job = await in_thread(queue.act_on_all, action, chosen, skipped, form)
        return await self._result(name, job)

    async def action(self, request: Request) -> Response:
        """Show how an action is getting on, or what came of it."""
        name, _ = self._of(request)
        number = request.path_params["number"]
        is_number = number.isascii() and number.isdecimal() and len(number) < 10
        job = self._site.jobs[name].find(int(number)) if is_number else None
        if job is None:
            raise HTTPException(404, "This action is forgotten. The history of the queue has what came of it.")
        return self._page(request, "action.html", name, job=job)

    def _of(self, request: Request) -> tuple[str, Queue]:
        self._site.refuse_strangers(request)
        name = self._site.watcher(request).name
        return name, self._queues[name]

    def _page(self, request: Request, template: str, name: str, **shown: Any) -> Response:
        return self._site.page(request, template, name=name, base=f"/p/{name}", **shown)

    def _confirm(
        self,
        request: Request,
        name: str,
        what: str,
        fields: Mapping[str, str],
        chosen: Sequence[ErrorEntry],
        *,
        skipped: int = 0,
    ) -> Response:
        return self._page(
            request,
            "confirm.html",
            name,
            what=what,
            number=len(chosen),
            last=max((entry.place.number for entry in chosen), default=0),
            skipped=skipped,
            fields=fields,
            to=request.url.path,
            action=request.path_params["action"],
        )

    async def _result(self, name: str, job: Job) -> Response:
        # It was taken on, and is not to be asked for again where too many pages wait.
        with suppress(RetryableError):
            await in_thread(job.done.wait, _SOON_S)
        return RedirectResponse(f"/p/{name}/actions/{job.number}", 303)


def _history_of(queue: Queue, entry_id: str) -> Any:
    try:
        return queue.errors().history(entry_id, most=_HISTORY)[::-1]
    except OperatorError:
        # A queue beside published events keeps none.
        return ()


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() and len(text) < 19 else None


def _changes(found: ShownEntry) -> dict[str, Any]:
    """The changes that a page shows, and where the pages beside it begin; None where there is none."""
    first, total = found.first, len(found.transaction.changes)
    return {
        "rows": list(enumerate(found.current_rows, start=first)),
        "before": first - CHANGES if first > 1 else None,
        "after": first + CHANGES if first + CHANGES <= total else None,
    }
