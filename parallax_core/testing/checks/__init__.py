"""The tests of `parallax_core.testing.stage.StageConformance`, by subject."""
