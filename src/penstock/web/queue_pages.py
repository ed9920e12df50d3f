"""The routes of the error queue. They show row values, so all of them need the token, whatever else may be read."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from starlette.convertors import Convertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from penstock.errors import OperatorError, RetryableError
from penstock.pipeline.errors import ShownEntry
from penstock.text import count
from penstock.web.edits import can_edit, kind_of
from penstock.web.jobs import Job
from penstock.web.queue import CHANGES, Queue, QueueFilter, place_text
from penstock.web.threads import in_thread

if TYPE_CHECKING:
    from penstock.web.site import Site


class ActionName(Convertor[str]):
    """What a path may name to be done: all else leads nowhere."""

    regex = "retry|delete"

    def convert(self, value: str) -> str:
        """Return the name."""
        return value

    def to_string(self, value: str) -> str:
        """Return the name."""
        return value


_SOON_S = 1.5
"""Most actions are over by then, and their result is shown at once."""

_HISTORY = 100


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
        found = await in_thread(lambda: queue.errors().show(request.path_params["entry"]))
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
            **_changes(found, request.query_params),
        )

    async def history(self, request: Request) -> Response:
        """List what people did with the queue."""
        name, queue = self._of(request)
        actions = await in_thread(lambda: queue.errors().history(most=_HISTORY))
        return self._page(request, "history.html", name, actions=actions[::-1], most=_HISTORY)

    async def act(self, request: Request) -> Response:
        """Retry, edit or delete one entry."""
        name, queue = self._of(request)
        form, entry_id = await self._site.form(request), request.path_params["entry"]
        if request.path_params["action"] == "retry":
            job = await in_thread(queue.retry, entry_id, form)
        elif "confirmed" not in form:
            entry, _ = await in_thread(lambda: queue.errors().load(entry_id))
            what = f"Give up transaction {entry.id}?"
            return self._confirm(request, name, what, 1, {})
        else:
            job = queue.delete([entry_id])
        return await self._result(name, job)

    async def act_on_all(self, request: Request) -> Response:
        """Retry or delete all entries that fit a filter; the number is said, and asked about, first."""
        name, queue = self._of(request)
        form = await self._site.form(request)
        wanted = QueueFilter.of(form)
        if "confirmed" not in form:
            number = await in_thread(lambda: queue.errors().count(wanted.filter))
            is_retry = request.path_params["action"] == "retry"
            what = "Dry run of" if "dry" in form else "Retry" if is_retry else "Give up"
            return self._confirm(request, name, f"{what} {count(number, 'transaction')}?", number, form)
        if request.path_params["action"] == "retry":
            job = await in_thread(queue.retry_all, wanted, form)
        else:
            job = await in_thread(queue.delete_all, wanted)
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

    def _confirm(self, request: Request, name: str, what: str, number: int, fields: Mapping[str, str]) -> Response:
        return self._page(
            request,
            "confirm.html",
            name,
            what=what,
            number=number,
            fields=fields,
            to=request.url.path,
            is_retry=request.path_params["action"] == "retry",
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


def _changes(found: ShownEntry, query: Mapping[str, str]) -> dict[str, Any]:
    """The changes that a page shows: around the one that failed, or from the one that is asked for."""
    asked = query.get("change", "")
    number = int(asked) if asked.isdecimal() and len(asked) < 10 else found.entry.message_number
    first = max(0, (number - 1) // CHANGES * CHANGES)
    rows = list(enumerate(found.current_rows, start=1))
    return {
        "rows": rows[first : first + CHANGES],
        "before": first - CHANGES + 1 if first > 0 else None,
        "after": first + CHANGES + 1 if first + CHANGES < len(rows) else None,
    }
