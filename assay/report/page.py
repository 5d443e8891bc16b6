"""stub"""
from pathlib import Path


def build_page(directory: Path) -> str:
    return "<html></html>"
