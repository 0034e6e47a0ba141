"""Turn text into a prepared corpus: `prepare_corpus` from Python, `python -m data_pipelines.prepare` from a shell."""
