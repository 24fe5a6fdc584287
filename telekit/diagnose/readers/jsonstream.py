"""Read a list of JSON objects from a stream of text: bounded memory, and one bad object costs only itself."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from telekit.diagnose.builder import ProblemCounter

MAX_OBJECT_CHARACTERS = 64_000_000
"""An event or a member that does not end within this much text is left out."""
_NEAR = 16  # an error this close to the end of the text says only that the text goes on
_HEAD = 4096  # what a file is shows in so many characters
_SKIP = re.compile(r"[\s,]*")
_NEXT = re.compile(r'\}\s*,?\s*(?=\{\s*"(?:ph|name|cat|ts|dur|pid|tid|id|args|s|bp|cname|tts)"\s*:)')
_LINE = re.compile(r'\{\s*"(?:ph|name|cat|ts|dur|pid|tid|id|args|s|bp|cname|tts)"\s*:')
_LAST = re.compile(r'\}\s*(?=\]\s*(?:,\s*"[^"]{1,60}"\s*:|\}|\Z))')
_LIST = re.compile(r'"traceEvents"\s*:\s*\[')
_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})|\\')
_CLOSING = tuple(",:]} \t\r\n")
_decoder: Any = json.JSONDecoder(parse_float=str, strict=False)
_scan = _decoder.scan_once  # text: floats would lose digits of times


class JsonEvents:
    """The events of a Chrome trace, one after the other; ``members`` are the other members of its object.

    Numbers with a fraction or an exponent come as text, as they stand.

    Parameters
    ----------
    pieces : iterator of str
        The text.
    problems : ProblemCounter
        Told what could not be read, by the number of the event.
    """

    def __init__(self, pieces: Iterator[str], problems: ProblemCounter) -> None:
        self._pieces, self._problems = pieces, problems
        self._text, self._at, self._ended = "", 0, False
        self._careful = False
        self.members: dict[str, Any] = {}
        self.count = 0

    def __iter__(self) -> Iterator[Any]:
        """Go through the events; any JSON value may come."""
        opening = self._skip()
        while len(self._text) < _HEAD and self._more():
            pass
        if opening == "[":
            self._at += 1
            yield from self._events()
        elif opening == "{" and _LINE.match(self._text, self._at) and not _LIST.search(self._text):
            self._problems.add("is no list of events but one object after the other, read so", lost=False)
            while self._skip() == "{":
                yield from self._event()
        elif opening == "{":
            self._at += 1
            while self._member():
                yield from self._events()
            self._at += self._skip() == "}"
        else:
            self._problems.add("is no JSON list or object: nothing of it was read")
            self._at = len(self._text)
        self._drain()

    def _drain(self) -> None:
        """Go to the end of the file: what stands after the trace is noted.

        A second trace may be another rank's: its events would pass for the first one's.
        """
        after = self._skip()
        if after in ("{", "["):
            reason = (
                "a second trace stands after the end of the first and is not read: it needs a file of its own"
            )
            self._problems.add(reason, f"after event {self.count}")
        elif after:
            self._problems.add(
                "text stands after the end of the trace and is not read", f"after event {self.count}"
            )
        for _ in self._pieces:
            pass

    def _more(self) -> bool:
        """Bring in the next piece; what was read is let go."""
        piece = next(self._pieces, None)
        if piece is None:
            self._ended = True
            return False
        self._text = self._text[self._at :] + piece
        self._at = 0
        self._careful = False
        return True

    def _skip(self) -> str:
        """Skip white space and commas; return the next character, or nothing at the end."""
        while True:
            found = _SKIP.match(self._text, self._at)
            self._at = found.end() if found else self._at
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def _value(self) -> tuple[Any, ValueError | None]:
        """Scan one value at the place reached; of a value that cannot be read return why."""
        error: ValueError
        if self._careful and (found := self._alone()):
            return found
        while True:
            try:
                value, end = _scan(self._text, self._at)
                closed = self._text[self._at] in '{["' or self._text[end : end + 1] in _CLOSING
                if closed or not self._more():  # a number at the end of the piece may go on in the next
                    self._at = end
                    return value, None
                continue
            except json.JSONDecodeError as why:
                self._careful = True
                open_ended = why.msg.startswith("Unterminated")
                error, where = why, len(self._text) if open_ended else why.pos
            except StopIteration as why:
                error, where = ValueError("a value is missing"), int(why.value)
            except RecursionError:
                return None, ValueError("is nested too deep")
            except ValueError as why:  # an integer of more digits than Python reads
                return None, why
            goes_on = where >= len(self._text) - _NEAR and len(self._text) - self._at < MAX_OBJECT_CHARACTERS
            if not goes_on or not self._more():
                return None, error

    def _alone(self) -> tuple[Any, ValueError | None] | None:
        """Scan an event cut out of the text, if its end can be told; None where that does not work.

        An error counts the lines of all the text before it: of a piece full of bad events, once an event.
        """
        found = _NEXT.search(self._text, self._at)
        if not found:
            return None
        part = self._text[self._at : found.start() + 1]
        try:
            value, end = _scan(part, 0)
        except json.JSONDecodeError as why:
            return None if why.msg.startswith("Unterminated") else (None, why)
        except (ValueError, StopIteration, RecursionError):
            return None
        if end != len(part):
            return None
        self._at += end
        return value, None

    def _events(self) -> Iterator[Any]:
        """Yield the values of the list that begins here, up to its end or that of the file."""
        while True:
            opening = self._skip()
            if opening == "]":
                self._at += 1
                if self._skip() != "{":
                    return
                self._problems.add(
                    "a bracket closes the list early: passed over", f"event {self.count}", lost=False
                )
                continue
            if not opening:
                self._problems.add("the file ends before its list of events does", lost=False)
                return
            yield from self._event()

    def _event(self) -> Iterator[Any]:
        """Yield the value that begins here; of one that is no JSON what can be made of it."""
        value, error = self._value()
        self.count += 1
        if error is None:
            yield value
        elif (
            self._ended and not _NEXT.search(self._text, self._at) and not _LAST.search(self._text, self._at)
        ):
            self._problems.add("the file ends inside an event", f"event {self.count}")
            self._at = len(self._text)
        else:
            yield from self._repaired(error)

    def _repaired(self, error: ValueError) -> Iterator[Any]:
        """Step over an object that is no JSON; if its escapes were all that was wrong, yield it."""
        end = self._boundary()
        broken = self._text[self._at : end]
        self._at = end
        place = f"event {self.count}"
        try:
            fixed = _ESCAPE.sub(lambda m: m[0] if len(m[0]) > 1 else "\\\\", broken)
            value, stop = _scan(fixed, 0)
        except (ValueError, StopIteration, RecursionError):
            value, stop = None, 0
        if value is not None and not fixed[stop:].strip(" \t\r\n,"):
            self._problems.add(
                "had bad escapes in a string, which were taken as they stand", place, lost=False
            )
            yield value
        else:
            why = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
            self._problems.add(f"is not JSON: {why}"[:120], place)

    def _boundary(self) -> int:
        """Return where the object that begins here probably ends: before the next one, or the end of the list."""
        while True:
            found = _NEXT.search(self._text, self._at)
            if found:
                return found.start() + 1
            if len(self._text) - self._at > MAX_OBJECT_CHARACTERS or not self._more():
                *_, last = [None, *_LAST.finditer(self._text, self._at)]
                return last.start() + 1 if last else len(self._text)

    def _member(self) -> bool:
        """Read members of the object up to the list of events; False at the end of the object or the file."""
        while True:
            opening = self._skip()
            if opening in ("}", ""):
                return False
            key, error = self._value()
            if error is None and isinstance(key, str) and self._skip() == ":":
                self._at += 1
                if self._skip() == "[" and key == "traceEvents":
                    self._at += 1
                    return True
                value, error = self._value()
                if error is None:
                    self.members[key] = value
                    continue
            self._problems.add("a member of the trace's object is not JSON", f"after event {self.count}")
            if not self._to_list():
                return False

    def _to_list(self) -> bool:
        """Step to the list of events if it is still to come."""
        while True:
            found = _LIST.search(self._text, self._at)
            if found:
                self._at = found.end() - 1
                self._text = self._text[: self._at] + '"traceEvents":' + self._text[self._at :]
                return True
            self._at = max(self._at, len(self._text) - 64)
            if not self._more():
                return False
