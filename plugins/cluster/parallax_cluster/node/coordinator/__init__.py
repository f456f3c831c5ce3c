"""Forms pipelines from joined nodes and replans when nodes change."""
