"""A search's log: what is written is read again, and what is no log is named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cudal2.plans import Key, Knobs
from cudal2.search import journal
from cudal2.search.journal import Candidate, Entry, Journal


class TestJournal:
    ENTRIES = (
        Entry(Key("f16", "tn", 8, 16, 24), Candidate("k_a", Knobs(4, 1, 132, 3, True)), 2.5, "top"),
        Entry(Key("f16", "tn", 8, 16, 24), Candidate("k_b"), 2.0, "quick"),
        Entry(Key("f16", "tn", 8, 16, 24), Candidate("k_c"), 2.1, "top"),
        Entry(Key("f16", "tn", 8, 16, 24), Candidate("k_a"), 2.4, "final"),
        Entry(Key("f16", "tn", 8, 16, 24), Candidate("torch"), 1.0, "final"),
        Entry(Key("f16", "tn", 8, 16, 24), Candidate("lt_heuristic"), 1.0, "final"),
        Entry(Key("f16", "nn", 8, 16, 24), Candidate(""), None, "crash", "illegal, and with a comma"),
    )

    @pytest.mark.parametrize("name", ["log.csv", "log.csv.gz"])
    def test_written_and_read(self, name: str, tmp_path: Path) -> None:
        log = Journal(tmp_path / name, resume=False)
        log.add(self.ENTRIES)
        log.close()
        assert tuple(journal.read(tmp_path / name)) == self.ENTRIES
        resumed = Journal(tmp_path / name, resume=True)
        assert resumed.crashes() == {Key("f16", "nn", 8, 16, 24): 1}
        assert resumed.finished() == {Key("f16", "tn", 8, 16, 24)}
        assert resumed.culprits() == set()
        resumed.add(self.ENTRIES[:1])
        resumed.close()
        assert tuple(journal.read(tmp_path / name)) == (*self.ENTRIES, self.ENTRIES[0])

    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            ("", "it has no column dtype"),
            ("# head\na,b\n1,2\n", "it has no column dtype"),
            ("\0\0", "no log of a search"),
            (
                f"{','.join(journal.COLUMNS)}\nf16,tn,8,x,24,k,8,0,0,1,0,2.5,top,\n",
                "log.csv:2: invalid literal for int",
            ),
            (f"{','.join(journal.COLUMNS)}\nf16,tn,8,8,24,k,8,0,0,1,0,0,top,\n", "log.csv:2: us=0; expected a time"),
            (
                f"{','.join(journal.COLUMNS)}\nf16,tn,8,8,24,k,8,0,0,1,0,nan,top,\n",
                "log.csv:2: us=nan; expected a time",
            ),
        ],
    )
    def test_what_is_no_log_is_named(self, text: str, reason: str, tmp_path: Path) -> None:
        (tmp_path / "log.csv").write_text(text)
        with pytest.raises(journal.JournalError, match=re.escape(reason)):
            list(journal.read(tmp_path / "log.csv"))

    def test_bytes_are_no_log(self, tmp_path: Path) -> None:
        for name in ("log.csv", "log.csv.gz"):
            (tmp_path / name).write_bytes(bytes(range(256)) * 8)
            with pytest.raises(journal.JournalError, match=f"{name}: no log of a search"):
                list(journal.read(tmp_path / name))

    def test_a_log_from_before_split(self, tmp_path: Path) -> None:
        old = "dtype,layout,m,n,k,kernel,group,raster,ctas,pdl,us,stage,note\nf16,tn,8,16,24,k_a,4,1,132,1,2.5,top,\n"
        (tmp_path / "log.csv").write_text(old)
        (entry,) = journal.read(tmp_path / "log.csv")
        assert entry.candidate == Candidate("k_a", Knobs(4, 1, 132, 1, True))
        assert entry.us == 2.5

    @pytest.mark.parametrize("name", ["log.csv", "log.csv.gz"])
    def test_a_log_cut_short_is_read_up_to_there(self, name: str, tmp_path: Path) -> None:
        log = Journal(tmp_path / name, resume=False)
        log.add(self.ENTRIES * 200)
        log.close()
        data = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(data[: len(data) * 2 // 3])
        kept = list(journal.read(tmp_path / name))
        assert kept == list(self.ENTRIES * 200)[: len(kept)]
        assert len(kept) < len(self.ENTRIES) * 200

    def test_best_takes_the_latest_stage_of_each_kernel(self, tmp_path: Path) -> None:
        log = Journal(tmp_path / "log.csv", resume=False)
        log.add(self.ENTRIES)
        log.close()
        best = journal.best(tmp_path / "log.csv", top=4)
        assert best == {("tn", 8, 16, 24): [Candidate("k_a"), Candidate("k_c")]}
