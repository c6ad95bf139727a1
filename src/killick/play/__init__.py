"""A page in the browser on which models predict images while they are corrupted.

In: run folders, and images that visitors pick or drop. Out: a page, and a folder that runs as a
Hugging Face Space. Imports everything up to `deploy`; Gradio is imported when a page is made.
"""
