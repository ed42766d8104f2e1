"""Words that training prompts are made of: subjects, requests, tasks, records. All our own."""

from __future__ import annotations

SUBJECTS = tuple(
    " ".join(subject.split())
    for subject in """
    sourdough bread; the moons of Jupiter; bees; the printing press; chess openings; tides; solar panels; the
    violin; coral reefs; medieval castles; recycling glass; the water cycle; jazz; volcanoes; learning to
    drive; the Silk Road; growing tomatoes; owls; sleep; steam engines; the Great Wall; public libraries;
    electric cars; photosynthesis; pottery; the Vikings; knitting; maps; the immune system; coffee;
    earthquakes; ballet; the Amazon river; budgeting at home; black holes; penguins; cheese; origami; the
    French Revolution; swimming; antibiotics; wind turbines; lullabies; the Olympic Games; ants; gravity;
    cinema; bridges; the human eye; tea ceremonies; desert plants; submarines; handwriting; the stock market;
    compost; whales; the Renaissance; first aid; camping; rainbows; board games; the periodic table; marathon
    training; street markets; glaciers; clocks; soap; folk tales; dogs; the nervous system; sailing; salt;
    democracy; cycling in the city; fireworks; the moon landing; maple syrup; paper; migrating birds; insulin;
    a good night's rest; rice farming; the telescope; spiders; trains; kindness at work; mirrors; vegetable
    soup; the Roman army; sharks; poetry; inflation; thunderstorms; the piano; wolves; museums; beekeeping;
    computers; memory; nutrition; the Sahara; chocolate; parachutes; friendship; mathematics in daily life;
    batteries; horses; winter sports; rivers; the internet; sunflowers; lighthouses; time zones; drums;
    plastic; lizards; apprenticeships; the heart; soil; robots; hospitals; fairy tales; mushrooms; satellites;
    gardening on a balcony; the alphabet; noise; orchards; vaccination; tents; sculpture; the ocean floor;
    negotiation; shoes; fire safety; wool; the bicycle; fishing; dictionaries; snow; lemons; courage
    """.split(";")
)

REQUESTS = (
    "What is the history of {0}?",
    "Explain {0} to a child.",
    "Give me five facts about {0}.",
    "Write a short poem about {0}.",
    "What do most people get wrong about {0}?",
    "How would you begin to learn about {0}?",
    "Why is {0} important?",
    "Compare {0} and {1}.",
    "Write a short story in which {0} and {1} play a part.",
    "Tell me a joke about {0}.",
    "Write a blog post about {0} with three headings.",
    "List the advantages and disadvantages of {0}.",
    "I have to give a talk about {0}. Can you help me with an outline?",
    "What are three good questions to ask about {0}?",
    "Give step by step advice to somebody who is new to {0}.",
    "Write a letter to a friend about {0}.",
    "Describe {0} in two sentences.",
    "How is {0} connected with {1}?",
    "Write a dialogue between two people who argue about {0}.",
    "Make a plan for a week in which I learn about {0}.",
    "What will {0} look like in fifty years?",
    "Write an e-mail that invites colleagues to a workshop on {0}.",
    "Give me a quiz of four questions about {0}, with answers.",
    "What is the best way to teach {0} at school?",
    "Write a short review of a book about {0}.",
)

PARAGRAPHS = (
    "Write one paragraph of about 120 words about {0}.",
    "Write a short article of one paragraph about {0} and {1}.",
    "Write a news report of about 100 words on {0}.",
    "Describe in one paragraph a day that has to do with {0}.",
    "Tell a story of about 120 words about a person who loves {0}.",
    "Write a formal letter of about 100 words about {0}.",
)

OPENINGS = (
    "",
    "",
    "",
    "",
    "How",
    "What",
    "Why",
    "Write",
    "Can you",
    "I am",
    "I want to",
    "Explain",
    "Give me",
    "Is it",
    "My",
    "Please",
    "Who",
    "Describe",
    "Create",
    "Help me",
    "When",
    "Tell me",
    "Make a list",
    "Suggest",
    "Should I",
)

REWRITINGS = (
    "Correct the spelling and grammar of this text and print it again.\n\n{0}",
    "Summarise this text in two sentences.\n\n{0}",
    "Summarise the following text in one sentence.\n\n{0}",
    "Rewrite this text in the past tense.\n\n{0}",
    "Rewrite the text below in simpler words.\n\n{0}",
    "Make this text more formal, but keep all facts.\n\n{0}",
    "Print this text again with one sentence on each line.\n\n{0}",
    "Turn this text into a list of points.\n\n{0}",
    "Make this text shorter by half.\n\n{0}",
    "Repeat this text word for word.\n\n{0}\n",
    "Rewrite this text so that it sounds friendlier.\n\n{0}",
    'Replace every "the" by "this" in the text and print it.\n\n{0}',
    "What are the key points of this text?\n\n{0}",
    "Write a title for this text, then print the text again.\n\n{0}",
    "Rewrite this paragraph in the first person.\n\n{0}",
    "Edit the following text for clarity and style.\n\n{0}",
)

TASKS = tuple(
    " ".join(task.split())
    for task in """
    reverses a list; counts the vowels of a string; checks whether a number is prime; finds the largest of
    three numbers; removes duplicates from a list; computes the factorial of a number; turns Celsius into
    Fahrenheit; sorts words by length; reads a file and prints its longest line; checks whether a word is a
    palindrome; adds two matrices; flattens a nested list; finds the second largest value; splits a list into
    chunks; computes the mean and the median; draws a triangle of stars; converts a Roman numeral; checks
    balanced brackets; makes a histogram of characters; searches a sorted array by bisection; computes the
    greatest common divisor; rotates an array by k places; validates a password; formats a phone number;
    prints a multiplication table; finds all anagrams in a list; removes empty lines; computes compound
    interest; converts a number to binary; simulates a dice game; keeps a to-do list; parses a date; computes
    Fibonacci numbers
    """.split(";")
)
LANGUAGES = ("Python", "Python", "Python", "JavaScript", "C", "Java", "Bash", "SQL", "Go", "HTML and CSS")
CODING = (
    "Write a {0} program that {1}.",
    "Write a {0} function that {1}, with a comment above each step.",
    "Show me {0} code that {1} and explain it briefly.",
    "Write unit tests for a {0} function that {1}.",
)
COMPLETIONS = (
    "Complete this Python function.\n\n```python\n{0}",
    "Finish the following code.\n\n```python\n{0}",
    "Continue this program.\n\n```python\n{0}\n",
    "Write the missing part of this function.\n\n```python\n{0}\n```",
    "Add a docstring to this function and print it again.\n\n```python\n{0}\n```",
    "Explain what this code does.\n\n{0}",
)

THINGS = tuple(
    " ".join(thing.split())
    for thing in """
    a person with name, age, city and hobbies; a book with title, author, year and chapters; a car with make,
    model, year and price; an invoice with number, date, lines and total; a restaurant with name, address,
    menu and opening hours; a city with name, country and population; a school with classes and teachers; a
    movie with title, year, actors and rating; a user account with id, name, email and roles; a flight with
    from, to, departure and seats; a plant with name, height, colour and months of bloom; a concert with
    artist, place, date and tickets; a library with shelves and books; a weather report with temperature, wind
    and rain; a shopping list with items and amounts; a football team with players and positions; a hotel room
    with number, beds, price and services; a recipe with title, ingredients and steps; a song with title,
    artist, album and length; a museum with halls and works; a server configuration with host, port, paths and
    limits; a bus line with stops and times; a pet with name, species and age; a company with departments and
    employees; a course with lessons and exercises; an order with customer, items and total
    """.split(";")
)
JSON_THINGS = (
    "Write a JSON object for {0}.",
    "Write a JSON list of three objects, each of them {0}.",
    "Give me example data in JSON: {0}.",
    "Return only JSON. Describe {0}.",
    "Make a JSON schema for {0}.",
    "Print a JSON list of four records like this: {0}.",
)
JSON_TEXTS = (
    "Extract the main facts of this text as a JSON object.\n\n{0}",
    'Return a JSON object with the keys "title", "summary" and "keywords" for this text.\n\n{0}',
    'Turn this text into a JSON list of objects with "sentence" and "topic".\n\n{0}',
    "Find all names, places and numbers in this text and print them as JSON.\n\n{0}",
    'Convert this into JSON with the keys "subject", "points" (a list of strings) and "conclusion".\n\n{0}',
)
