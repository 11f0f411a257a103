"""A small, complete decoder on paged memory: its settings, its maths, its tokenizer and its weights.

Read in this order: `config` (the numbers that fix a model's shape), `decoder` (the forward pass), `tokenizer`
(text to ids and back), `loading` (a folder on disk to a model in memory). ``weights/quill`` holds the model that
ships with pagedlab; the scripts that made it are in ``docs/model/`` of the repository.

vLLM counterpart: ``vllm/model_executor/`` at 0.25.1.
"""
