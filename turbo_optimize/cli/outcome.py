"""How a run ends on the terminal: the same facts for people and for machines."""

from __future__ import annotations

import json
from typing import Any

from turbo_optimize.campaign import Campaign
from turbo_optimize.core.machine import incumbent_score


def facts(c: Campaign) -> dict[str, Any]:
    """What `start --json` and `resume --json` print on their last line."""
    final = next((x for x in c.state.compared if x.what == "final"), None)
    score = incumbent_score(c.state)
    return {
        "campaign": c.manifest.campaign,
        "dir": str(c.layout.root),
        "code": c.state.terminated.code if c.state.terminated else None,
        "rounds": len(c.state.rounds),
        "accepted": len(c.state.accepted),
        "score": score.value if score else None,
        "unit": score.unit if score else None,
        "gain_pct": final.gain_pct if final else 0.0,
        "final_ok": all(g.ok for g in c.state.final.gates) if c.state.final else False,
        "reported": c.state.reported,
    }


def finish(c: Campaign, as_json: bool) -> None:
    if as_json:
        print(json.dumps(facts(c), ensure_ascii=False))
        return
    from rich.console import Console

    from turbo_optimize.reports.console import status_table

    console = Console(highlight=False)
    console.print(status_table(c.state))
    if c.state.reported:
        console.print(f"report: {c.layout.report / 'report.md'}", soft_wrap=True)
    elif c.state.current and c.manifest.proposer == "manual":
        n = c.state.current.number
        console.print(f"worktree: {c.layout.worktree}", soft_wrap=True)
        console.print(
            f"edit it, then: turbo-opt validate --round {n} --campaign {c.manifest.campaign} --hypothesis TEXT",
            soft_wrap=True,
        )
