"""Growing columns that readers append to; compact while millions of rows arrive."""

from __future__ import annotations

from array import array


class Columns:
    """Rows as read, in file order. Arrays have an entry a row, or none where the format lacks it."""

    def __init__(self) -> None:
        self.arrival = array("q")
        self.prompt = array("i")
        self.output = array("i")
        self.covered = array("i")
        self.ids = array("q")
        """Ids of all rows behind each other; row i has `id_count[i]` of them."""
        self.id_count = array("i")
        self.session = array("i")
        self.own = array("i")
        self.parent = array("i")
        self.think = array("q")
        self.kind = array("i")
        self.priority = array("i")
        self.session_names: dict[object, int] = {}
        self.row_names: dict[object, int] = {}
        self.kind_names: dict[object, int] = {}
        self.id_tokens = 0
        """Tokens an id stands for, where the rows themselves state it."""
        self.failed = 0
        self.assumed_arrivals = 0
        self.skipped = 0
        self.first_skipped = ""

    def append(self, arrival: int, prompt: int, output: int) -> None:
        """Append what every row has: nanoseconds and token counts."""
        self.arrival.append(arrival)
        self.prompt.append(prompt)
        self.output.append(output)

    def append_ids(self, ids: array[int], covered: int) -> None:
        """Append the ids that cover the row's first `covered` tokens."""
        self.ids.extend(ids)
        self.id_count.append(len(ids))
        self.covered.append(covered)

    def skip(self, message: str) -> None:
        """Count a bad row that is left out."""
        self.skipped += 1
        self.first_skipped = self.first_skipped or message
