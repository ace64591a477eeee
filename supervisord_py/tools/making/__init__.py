"""Tool folders come and go: new, added, synced, removed."""
