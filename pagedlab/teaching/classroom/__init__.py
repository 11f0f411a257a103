"""What a teacher does: give a class its copy of the course, grade what comes back, hand it to nbgrader.

vLLM has no counterpart.
"""
