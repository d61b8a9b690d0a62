"""A bar chart as SVG, by hand: a few lines instead of a plotting library."""

from __future__ import annotations

from pathlib import Path

WIDTH, LABELS, ROW = 760, 250, 26


def bars(path: Path, title: str, rows: list[tuple[str, float]], mark: float, mark_label: str) -> None:
    """One bar per row, and a line at the mark."""
    scale = (WIDTH - LABELS - 60) / max([mark, *(value for _, value in rows)])
    height = ROW * (len(rows) + 2)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="sans-serif" font-size="13">',
        f'<text x="8" y="18" font-weight="bold">{title}</text>',
    ]
    for number, (label, value) in enumerate(rows, 1):
        y = number * ROW
        color = "#2a6f97" if label.startswith("ours") else "#a0a0a0"
        parts.append(f'<text x="{LABELS - 8}" y="{y + 17}" text-anchor="end">{label}</text>')
        parts.append(f'<rect x="{LABELS}" y="{y + 4}" width="{value * scale:.1f}" height="{ROW - 8}" fill="{color}"/>')
        parts.append(f'<text x="{LABELS + value * scale + 6:.1f}" y="{y + 17}">{value:.2f}</text>')
    x = LABELS + mark * scale
    parts.append(
        f'<line x1="{x:.1f}" y1="{ROW}" x2="{x:.1f}" y2="{height - ROW}" stroke="#c1121f" stroke-dasharray="4 3"/>'
    )
    parts.append(f'<text x="{x:.1f}" y="{height - 8}" text-anchor="middle" fill="#c1121f">{mark_label}</text>')
    path.write_text("\n".join([*parts, "</svg>", ""]), encoding="utf-8")
