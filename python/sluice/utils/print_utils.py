"""Prints vectors."""

from collections.abc import Sequence


def print_embeddings(embeds: Sequence[float], prefix: str = "Embeddings") -> None:
    """Prints the first numbers of a vector and how many there are."""
    shown = str(list(embeds[:4])).removesuffix("]") + ", ...]" if len(embeds) > 4 else str(list(embeds))
    print(f"{prefix}: {shown} (size={len(embeds)})")


__all__ = ["print_embeddings"]
