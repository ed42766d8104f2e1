"""Twenty prompts of our own for the tests on real weights: chat, code, rewriting, structured text."""

LIST = (
    "apples, 3 boxes of pears, 12 plums, a sack of potatoes, 2 loaves of bread, honey, salt and "
    "a bottle of oil"
)
CODE = """def area(width, height):
    if width < 0 or height < 0:
        raise ValueError("sizes are not negative")
    return width * height
"""
STORY = (
    "The lighthouse keeper rose before dawn, filled the lamp with oil, and wrote the weather into the log. A "
    "fishing boat passed close to the rocks. The keeper rang the bell three times, and the boat "
    "turned back to the open sea."
)
RECORD = (
    '{"name": "Ada Winter", "age": 41, "city": "Bergen", "languages": ["Norwegian", "English", "German"]}'
)

PROMPTS = (
    "What is the capital of France?",
    "Name three things that float on water and say why.",
    "Explain in two sentences what a compiler does.",
    "Write a short poem about rain on a tin roof.",
    "How do I boil an egg? Answer step by step.",
    f"Add a comment above every line of this function and print it again:\n{CODE}",
    f"Rename width to w and height to h and print the whole function:\n{CODE}",
    f"Write a second function perimeter in the style of this one:\n{CODE}",
    f"Repeat this function exactly, three times:\n{CODE}",
    "Write a Python loop that prints the numbers from 1 to 10, each on a line of its own.",
    f"Repeat this text word for word: {STORY}",
    f"Correct the spelling, if anything is wrong, and print the text again: {STORY}",
    f"Summarise this text in one sentence: {STORY}",
    f"Write this text again in the present tense: {STORY}",
    f"Copy this shopping list twice: {LIST}",
    f"Print this list with one item on each line: {LIST}",
    f"Print this record again with the city changed to Oslo: {RECORD}",
    f"Print three records like this one, with other people: {RECORD}",
    f"Print this record in YAML: {RECORD}",
    "Print the days of the week as a JSON list, then print the same list again.",
)
