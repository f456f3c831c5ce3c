"""The plugins that core brings itself: model sources, default policies, the in-process transport."""
