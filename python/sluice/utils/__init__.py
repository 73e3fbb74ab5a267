"""Helpers of scripts, under vLLM's names."""

from sluice.utils.argparse_utils import FlexibleArgumentParser

__all__ = ["FlexibleArgumentParser"]
