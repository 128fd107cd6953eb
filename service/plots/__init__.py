"""Pictures of results: what a soup, a selection, a score, a fit and a training came to, drawn from their values."""

from service.plots.picture import Picture

__all__ = ["Picture"]
