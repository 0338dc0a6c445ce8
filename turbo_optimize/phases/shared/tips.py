"""campaigns/tips/<gpu>/<op>/<backend>/tips.md: lessons that outlive a campaign."""

from __future__ import annotations

from pathlib import Path

from turbo_optimize.campaign import Campaign
from turbo_optimize.effects.store import write_atomic


def tips_path(c: Campaign) -> Path:
    m = c.manifest
    name = m.target_op if m.target_variant == "default" else f"{m.target_op}_{m.target_variant}"
    return c.repo.top / "campaigns" / "tips" / m.target_gpu / name / m.target_backend.lower() / "tips.md"


def read_tips(c: Campaign) -> tuple[str, ...]:
    """Lessons of earlier campaigns on the same GPU, op and backend; a tip is a line that starts with `- `."""
    path = tips_path(c)
    if not path.exists():
        return ()
    return tuple(x[2:] for x in path.read_text(encoding="utf-8").splitlines() if x.startswith("- "))


def append_tips(c: Campaign, found: tuple[dict[str, str], ...]) -> None:
    """At most five lessons, below those of earlier campaigns; written once even where a crash repeats the step."""
    path = tips_path(c)
    old = path.read_text(encoding="utf-8") if path.exists() else ""
    heading = f"## {c.manifest.campaign}\n"
    if not found or heading in old:
        return
    lines = [
        f"- {t['takeaway']} (when: {t['context']}; signal: {t['signal']}; applies to: {t['applicability']})"
        for t in found
    ]
    title = old or f"# Tips: {c.manifest.target_gpu}, {c.manifest.target_op}, {c.manifest.target_backend}\n"
    write_atomic(path, f"{title}\n{heading}\n" + "\n".join(lines) + "\n")
