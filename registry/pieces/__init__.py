"""Independent pieces of work, and the places where they run: processes of this machine, or tasks of a Ray cluster."""

from registry.pieces.contract import Ended, MachineProblem, Piece, PieceProgress, Watch, Work, Workplace, nobody
from registry.pieces.own_disk import own_disk, own_folder
from registry.pieces.processes import Processes

__all__ = [
    "Ended",
    "MachineProblem",
    "Piece",
    "PieceProgress",
    "Processes",
    "Watch",
    "Work",
    "Workplace",
    "nobody",
    "own_disk",
    "own_folder",
]
