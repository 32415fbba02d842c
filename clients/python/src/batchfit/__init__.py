"""Exports PyTorch models for batchfit: the forward pass with its loss, without weights and without a GPU."""

from .errors import ExportError
from .exporting import Exported, export

__all__ = ["ExportError", "Exported", "export"]
