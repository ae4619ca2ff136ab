"""Changes of the catalog: drafts, and the one place that carries them out."""
