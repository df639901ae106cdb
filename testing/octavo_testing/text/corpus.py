"""Texts that tokenizers are known to disagree about."""

HOSTILE = [
    "",
    " ",
    "Hello, world!",
    "  two spaces before 12 and   three before 345",
    "12 1234567890 3.14159 1,000,000 ٣٤٥ ⅷ ² ½",
    "\n\n\n\t\t \r\n a\r b \x0b \x0c \u00a0 \u2003 \u3000 \u200b end   ",
    "I'm you're we'LL IT'S 'twas don’t",
    "naïve café — “quotes” … Ωμέγα ÅÄÖ ǅ ŉ İıſß ﬁ",
    "e\u0301 vs é, क्षि, กำ, 한글 한글",
    "日本語のテキスト、中文文本。한국어 텍스트",
    "مرحبا بالعالم שלום עולם",
    "👨‍👩‍👧‍👦 🇩🇪 🏳️‍🌈 👍🏽 \U0001f9d1\u200d\U0001f680",
    "def f(x: int) -> str:\n    return f'{x!r}'  # comment\n\tif (a && b) { c[0] += 1; }\n",
    "<|im_start|>user\nhi<|im_end|><|endoftext|> <|im_start |> <s></s> [INST] <repo_name>x",
    "\x00\x01\x1b[31mred\x7f\x80\x9f \ufffd \ufeff \uffff \U0010ffff",
    "a" * 3000,
    " " * 1000 + "x" + "\n" * 500,
    "ab12 " * 500,
    "https://example.com/a?b=c&d=%20#e user@example.org C:\\path\\file",
    "▁ already ▁▁ marked ▁",
]
