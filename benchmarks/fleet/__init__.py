"""What `benchmarks.scale` measures of several servers behind `soup route`, a part each."""
