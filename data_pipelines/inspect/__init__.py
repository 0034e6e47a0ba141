"""Show one window of a corpus as text and as a picture: python -m data_pipelines.inspect"""
