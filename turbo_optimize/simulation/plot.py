"""Accept probability against true gain, as an SVG written by hand. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from turbo_optimize.simulation.summary import Row

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 400, 64, 16, 44, 52
# Told apart by dash and marker too, not by colour alone.
STYLES: tuple[tuple[str, str], ...] = (("#0b5394", ""), ("#b45309", "7 3"), ("#6b7280", "2 3"))


def svg(rows: Sequence[Row], title: str) -> str:
    """One line a rule, with its 95% intervals; white ground, so that it reads on a dark page as well."""
    low, high = min(r.gain_pct for r in rows), max(r.gain_pct for r in rows)
    span = (high - low) or 1.0

    def x(gain: float) -> float:
        return LEFT + 10 + (gain - low) / span * (WIDTH - LEFT - RIGHT - 20)

    def y(rate: float) -> float:
        return TOP + (1 - rate) * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
        ' font-family="sans-serif" font-size="13" fill="#111827">',
        f"<title>{title}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="22" font-weight="bold">{title}</text>',
    ]
    for rate in (0.0, 0.25, 0.5, 0.75, 1.0):
        parts.append(f'<path d="M{LEFT} {y(rate):.1f}H{WIDTH - RIGHT}" stroke="#e5e7eb"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y(rate) + 4:.1f}" text-anchor="end">{100 * rate:.0f}%</text>')
    for tick in range(round(low), round(high) + 1):
        parts.append(f'<path d="M{x(tick):.1f} {y(0):.1f}v5" stroke="#111827"/>')
        parts.append(f'<text x="{x(tick):.1f}" y="{y(0) + 20:.1f}" text-anchor="middle">{tick:+d}%</text>')
    parts.append(f'<text x="{WIDTH / 2:.0f}" y="{HEIGHT - 12}" text-anchor="middle">true gain of the change</text>')
    for i, rule in enumerate(dict.fromkeys(r.rule for r in rows)):
        colour, dash = STYLES[i % len(STYLES)]
        found = sorted((r for r in rows if r.rule == rule), key=lambda r: r.gain_pct)
        line = "L".join(f"{x(r.gain_pct):.1f} {y(r.rate):.1f}" for r in found)
        parts.append(f'<path d="M{line}" fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"/>')
        for r in found:
            (a, b), at = r.interval, x(r.gain_pct)
            parts.append(f'<path d="M{at:.1f} {y(a):.1f}V{y(b):.1f}" stroke="{colour}" stroke-width="2"/>')
            parts.append(f'<circle cx="{at:.1f}" cy="{y(r.rate):.1f}" r="3" fill="{colour}"/>')
        top = HEIGHT - BOTTOM - 30 - 20 * (2 - i)
        parts.append(
            f'<path d="M{WIDTH - 200} {top - 4}h34" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"/>'
        )
        parts.append(f'<text x="{WIDTH - 160}" y="{top}">{rule}</text>')
    return "\n".join([*parts, "</svg>", ""])
