"""The safekeeper: timelines, on its disk and on backups."""
