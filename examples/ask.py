"""Ask an output of `embed` several questions from Python: its models are loaded once.

python examples/ask.py OUT "How do I send the vectors to a Qdrant server?" "What is a lease?"

`ultimate-embedder search OUT "QUESTION"` does the same for one question, with more room to read.
"""

from __future__ import annotations

import argparse
import textwrap
from pathlib import Path

from ultimate_embedder import open_output


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("questions", nargs="+")
    parser.add_argument("--top", type=int, default=3)
    options = parser.parse_args()

    output = open_output(options.output)
    for question in options.questions:
        hits = output.search(question, top=options.top)
        print(f"\n{question}  ({hits.seconds['encode'] + hits.seconds['search']:.3f} s)")
        for hit in hits:
            legs = ", ".join(f"{name} {score:.3f}" for name, score in hit.scores.items() if score is not None)
            print(f"\n  {hit.score:.3f}  {hit.source}: {' > '.join(hit.section)}  [{legs}]")
            print(textwrap.indent(textwrap.shorten(hit.text, 240), "         "))


if __name__ == "__main__":
    main()
