"""Problems in the manner of MBPP, with programs as people and models write them, each with a known verdict."""

from __future__ import annotations

from typing import NamedTuple


class Problem(NamedTuple):
    """A function, its assertions, and a slip that makes it wrong."""

    name: str
    right: str
    tests: tuple[str, ...]
    slip: tuple[str, str]
    """What is replaced, and by what."""
    lacks: str = ""
    """What MicroPython lacks of it; empty for what it runs."""

    @property
    def wrong(self) -> str:
        assert self.slip[0] in self.right, self.name
        return self.right.replace(*self.slip)


def _p(right: str, tests: str, slip: tuple[str, str], lacks: str = "") -> Problem:
    return Problem(
        right.split("def ", 1)[1].partition("(")[0], right.strip("\n"), tuple(tests.strip().splitlines()), slip, lacks
    )


PROBLEMS: tuple[Problem, ...] = (
    _p(
        """
def shared_elements(first, second):
    return tuple(set(first) & set(second))
""",
        """
assert set(shared_elements((3, 4, 5, 6), (5, 7, 4, 10))) == set((4, 5))
assert set(shared_elements((1, 2), (5, 7))) == set(())
assert sorted(shared_elements((11, 12, 14, 13), (17, 15, 14, 13))) == [13, 14]
""",
        ("&", "|"),
    ),
    _p(
        """
def is_not_prime(n):
    if n < 2:
        return True
    return any(n % i == 0 for i in range(2, int(n ** 0.5) + 1))
""",
        """
assert is_not_prime(2) == False
assert is_not_prime(10) == True
assert is_not_prime(35) == True
assert is_not_prime(9) is True
""",
        ("+ 1)", ")"),
    ),
    _p(
        """
import heapq

def largest(nums, n):
    return heapq.nlargest(n, nums)
""",
        "assert largest([25, 35, 22, 85, 14, 65, 75, 22, 58], 3) == [85, 75, 65]",
        ("nlargest", "nsmallest"),
        "heapq.nlargest",
    ),
    _p(
        """
def smallest(nums, n):
    heap = list(nums)
    import heapq
    heapq.heapify(heap)
    return [heapq.heappop(heap) for _ in range(n)]
""",
        "assert smallest([5, 3, 9, 1], 2) == [1, 3]",
        ("range(n)", "range(n - 1)"),
    ),
    _p(
        """
def differ_at_one_bit(a, b):
    x = a ^ b
    return x != 0 and x & (x - 1) == 0
""",
        """
assert differ_at_one_bit(13, 9) == True
assert differ_at_one_bit(15, 8) == False
assert not differ_at_one_bit(4, 4)
""",
        ("x != 0 and ", ""),
    ),
    _p(
        """
import re

def long_words(text):
    return re.findall(r"\\b\\w{4,}\\b", text)
""",
        "assert long_words('Please move back to stream') == ['Please', 'move', 'back', 'stream']",
        ("4,", "5,"),
        "re.findall",
    ),
    _p(
        """
import re

def starts_with_a(text):
    return bool(re.match("a.*", text))
""",
        """
assert starts_with_a("abc")
assert not starts_with_a("bca")
""",
        ("a.*", "b.*"),
    ),
    _p(
        """
def square_nums(nums):
    return list(map(lambda x: x ** 2, nums))
""",
        "assert square_nums([1, 2, 3, 4]) == [1, 4, 9, 16]",
        ("** 2", "* 2"),
    ),
    _p(
        """
def find_rotations(s):
    double = s + s
    for i in range(1, len(s) + 1):
        if double[i:i + len(s)] == s:
            return i
""",
        """
assert find_rotations("aaaa") == 1
assert find_rotations("ab") == 2
assert find_rotations("abcabc") == 3
""",
        ("range(1,", "range(2,"),
    ),
    _p(
        """
from collections import Counter

def most_common_char(text):
    return Counter(text).most_common(1)[0]
""",
        "assert most_common_char('aabbbc') == ('b', 3)",
        ("[0]", ""),
        "collections.Counter",
    ),
    _p(
        """
def remove_occurrences(s, ch):
    i = s.find(ch)
    s = s[:i] + s[i + 1:]
    j = s.rfind(ch)
    return s[:j] + s[j + 1:]
""",
        """
assert remove_occurrences("hello", "l") == "heo"
assert remove_occurrences("abcda", "a") == "bcd"
""",
        ("rfind", "count"),
    ),
    _p(
        """
def sort_matrix(matrix):
    return sorted(matrix, key=sum)
""",
        "assert sort_matrix([[1, 2, 3], [2, 4, 5], [1, 1, 1]]) == [[1, 1, 1], [1, 2, 3], [2, 4, 5]]",
        ("key=sum", "key=len"),
    ),
    _p(
        """
def count_words(words):
    counts = {}
    for word in words:
        counts[word] = counts.get(word, 0) + 1
    return counts
""",
        "assert count_words(['a', 'b', 'a']) == {'b': 1, 'a': 2}",
        ("+ 1", "+ 2"),
    ),
    _p(
        """
import math

def sphere_volume(r):
    return (4 / 3) * math.pi * r ** 3
""",
        """
assert sphere_volume(10) == 4188.790204786391
assert sphere_volume(25) == 65449.84694978735
""",
        ("** 3", "** 2"),
    ),
    _p(
        """
def sphere_area(r):
    return 4 * 3.141592653589793 * r * r
""",
        "assert round(sphere_area(10), 2) == 1256.64",
        ("4 *", "2 *"),
    ),
    _p(
        """
import math

def lateral_surface(r, h):
    return math.pi * r * math.sqrt(r ** 2 + h ** 2)
""",
        """
assert math.isclose(lateral_surface(5, 12), 204.20352248333654, rel_tol=0.001)
assert abs(lateral_surface(10, 15) - 566.3586699569488) < 1e-6
""",
        ("sqrt", "fabs"),
    ),
    _p(
        """
def tuple_to_dict(pairs):
    return dict(zip(pairs[::2], pairs[1::2]))
""",
        "assert tuple_to_dict((1, 5, 7, 10, 13, 5)) == {1: 5, 7: 10, 13: 5}",
        ("[1::2]", "[::2]"),
        "tuple[::2]",
    ),
    _p(
        """
def flatten(items):
    flat = []
    for item in items:
        if isinstance(item, (list, tuple)):
            flat.extend(flatten(item))
        else:
            flat.append(item)
    return flat
""",
        "assert flatten([0, 10, [20, 30], 40, 50, [60, [70, 80]]]) == [0, 10, 20, 30, 40, 50, 60, 70, 80]",
        ("extend", "append"),
    ),
    _p(
        """
from itertools import chain

def joined(lists):
    return list(chain.from_iterable(lists))
""",
        "assert joined([[1, 2], [3], []]) == [1, 2, 3]",
        ("chain.from_iterable(lists)", "lists"),
        "itertools",
    ),
    _p(
        """
from itertools import combinations

def triplets(nums, total):
    return [c for c in combinations(nums, 3) if sum(c) == total]
""",
        "assert triplets([1, 2, 3, 4], 9) == [(2, 3, 4)]",
        ("==", "!="),
        "itertools",
    ),
    _p(
        """
from functools import reduce

def product(nums):
    return reduce(lambda a, b: a * b, nums, 1)
""",
        "assert product((1, 2, 3, 4)) == 24",
        ("a * b", "a + b"),
        "functools",
    ),
    _p(
        """
from functools import lru_cache

@lru_cache(maxsize=None)
def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)
""",
        "assert fibonacci(50) == 12586269025",
        ("n - 2", "n - 3"),
        "functools",
    ),
    _p(
        """
def lucas(n):
    a, b = 2, 1
    for _ in range(n):
        a, b = b, a + b
    return a
""",
        """
assert lucas(9) == 76
assert lucas(4) == 7
""",
        ("2, 1", "1, 2"),
    ),
    _p(
        """
from typing import List

def running_max(numbers: List[int]) -> List[int]:
    result = []
    for n in numbers:
        result.append(n if not result else max(n, result[-1]))
    return result
""",
        "assert running_max([1, 3, 2, 5]) == [1, 3, 3, 5]",
        ("max(", "min("),
        "typing",
    ),
    _p(
        """
def binary(n):
    return bin(n).replace("0b", "")
""",
        """
assert binary(8) == '1000'
assert binary(18) == '10010'
""",
        ('"0b", ""', '"1", ""'),
    ),
    _p(
        """
def count_ones(n):
    return bin(n).count("1")
""",
        "assert [count_ones(4), count_ones(7)] == [1, 3]",
        ('"1"', '"0"'),
    ),
    _p(
        """
def bit_count(n):
    return n.bit_length()
""",
        "assert bit_count(255) == 8",
        ("()", "() + 1"),
        "int.bit_length",
    ),
    _p(
        """
def title_case(text):
    return text.title()
""",
        "assert title_case('hello big world') == 'Hello Big World'",
        ("title", "upper"),
        "str.title",
    ),
    _p(
        """
def padded(number, width):
    return str(number).zfill(width)
""",
        "assert padded(42, 5) == '00042'",
        ("zfill(width)", "strip()"),
        "str.zfill",
    ),
    _p(
        """
def letters_only(text):
    return "".join(c for c in text if c.isalpha())
""",
        "assert letters_only('a1b2-c') == 'abc'",
        ("isalpha", "isdigit"),
    ),
    _p(
        """
def alphanumeric(text):
    return all(c.isalnum() for c in text)
""",
        """
assert alphanumeric("ab3") == True
assert alphanumeric("a b") == False
""",
        ("all", "any"),
        "str.isalnum",
    ),
    _p(
        """
def swap_case(text):
    return "".join(c.lower() if c.isupper() else c.upper() for c in text)
""",
        "assert swap_case('Hello') == 'hELLO'",
        ("isupper", "islower"),
    ),
    _p(
        """
def reverse_words(text):
    return " ".join(reversed(text.split()))
""",
        "assert reverse_words('python program') == 'program python'",
        ("reversed(text.split())", "text.split()"),
    ),
    _p(
        """
def is_palindrome(text):
    text = text.replace(" ", "").lower()
    return text == text[::-1]
""",
        """
assert is_palindrome("Never odd or even") == True
assert is_palindrome("python") == False
""",
        (".lower()", ""),
        "str[::-1]",
    ),
    _p(
        """
def count_vowels(text):
    return sum(1 for c in text.lower() if c in "aeiou")
""",
        "assert count_vowels('Hello World') == 3",
        ("aeiou", "aei"),
    ),
    _p(
        """
def anagrams(a, b):
    return sorted(a) == sorted(b)
""",
        """
assert anagrams("listen", "silent") == True
assert anagrams("abc", "abd") == False
""",
        ("sorted(a)", "len(a)"),
    ),
    _p(
        """
def gcd(a, b):
    while b:
        a, b = b, a % b
    return a
""",
        """
assert gcd(12, 17) == 1
assert gcd(8, 12) == 4
""",
        ("return a", "return b"),
    ),
    _p(
        """
import math

def lcm(a, b):
    return a * b // math.gcd(a, b)
""",
        "assert lcm(4, 6) == 12",
        ("//", "+"),
        "math.gcd",
    ),
    _p(
        """
def binomial(n, k):
    result = 1
    for i in range(min(k, n - k)):
        result = result * (n - i) // (i + 1)
    return result
""",
        """
assert binomial(100, 50) == 100891344545564193334812497256
assert binomial(5, 2) == 10
""",
        ("(i + 1)", "(i + 2)"),
    ),
    _p(
        """
def catalan(n):
    table = [1] + [0] * n
    for i in range(1, n + 1):
        for j in range(i):
            table[i] += table[j] * table[i - j - 1]
    return table[n]
""",
        "assert catalan(10) == 16796",
        ("i - j - 1", "i - j"),
    ),
    _p(
        """
def longest_increasing(nums):
    best = [1] * len(nums)
    for i in range(len(nums)):
        for j in range(i):
            if nums[j] < nums[i]:
                best[i] = max(best[i], best[j] + 1)
    return max(best, default=0)
""",
        """
assert longest_increasing([10, 22, 9, 33, 21, 50, 41, 60]) == 5
assert longest_increasing([]) == 0
""",
        ("<", ">"),
    ),
    _p(
        """
def min_cost(cost, m, n):
    for i in range(m + 1):
        for j in range(n + 1):
            before = []
            if i:
                before.append(cost[i - 1][j])
            if j:
                before.append(cost[i][j - 1])
            if i and j:
                before.append(cost[i - 1][j - 1])
            if before:
                cost[i][j] += min(before)
    return cost[m][n]
""",
        "assert min_cost([[1, 2, 3], [4, 8, 2], [1, 5, 3]], 2, 2) == 8",
        ("min(before)", "max(before)"),
    ),
    _p(
        """
def edit_distance(a, b):
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        previous, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            previous, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, previous + (x != y))
    return row[-1]
""",
        """
assert edit_distance("kitten", "sitting") == 3
assert edit_distance("", "abc") == 3
""",
        ("x != y", "x == y"),
    ),
    _p(
        """
def bubble_sort(items):
    items = list(items)
    for i in range(len(items)):
        for j in range(len(items) - i - 1):
            if items[j] > items[j + 1]:
                items[j], items[j + 1] = items[j + 1], items[j]
    return items
""",
        "assert bubble_sort([12, 10, 14, 9]) == [9, 10, 12, 14]",
        (">", "<"),
    ),
    _p(
        """
def binary_search(items, wanted):
    low, high = 0, len(items) - 1
    while low <= high:
        middle = (low + high) // 2
        if items[middle] == wanted:
            return middle
        if items[middle] < wanted:
            low = middle + 1
        else:
            high = middle - 1
    return -1
""",
        """
assert binary_search([1, 3, 5, 7, 9], 9) == 4
assert binary_search([1, 3, 5, 7, 9], 4) == -1
""",
        ("<=", "<"),
    ),
    _p(
        """
import bisect

def insert_position(items, value):
    return bisect.bisect_right(items, value)
""",
        "assert insert_position([1, 2, 4, 5], 3) == 2",
        ("bisect_right(items, value)", "bisect_right(items, value) + 1"),
        "bisect",
    ),
    _p(
        """
def decimal_to_roman(n):
    pairs = [(1000, "M"), (900, "CM"), (500, "D"), (400, "CD"), (100, "C"), (90, "XC"), (50, "L"), (40, "XL"),
             (10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I")]
    text = ""
    for value, letters in pairs:
        while n >= value:
            text += letters
            n -= value
    return text
""",
        "assert decimal_to_roman(1994) == 'MCMXCIV'",
        ('(4, "IV"), ', ""),
    ),
    _p(
        """
class Pair(object):
    def __init__(self, a, b):
        self.a = a
        self.b = b

def longest_chain(arr):
    arr = sorted(arr, key=lambda p: p.b)
    last, count = None, 0
    for pair in arr:
        if last is None or pair.a > last:
            last, count = pair.b, count + 1
    return count
""",
        "assert longest_chain([Pair(5, 24), Pair(15, 25), Pair(27, 40), Pair(50, 60)]) == 3",
        ("count + 1", "count + 2"),
    ),
    _p(
        """
from collections import namedtuple

Point = namedtuple("Point", ["x", "y"])

def middle(a, b):
    return Point((a[0] + b[0]) / 2, (a[1] + b[1]) / 2)
""",
        "assert middle((0, 0), (2, 4)) == (1, 2)",
        ("/ 2)", "/ 3)"),
    ),
    _p(
        """
from collections import defaultdict

def grouped(pairs):
    groups = defaultdict(list)
    for key, value in pairs:
        groups[key].append(value)
    return dict(groups)
""",
        "assert grouped([('a', 1), ('b', 2), ('a', 3)]) == {'a': [1, 3], 'b': [2]}",
        ("append(value)", "append(key)"),
        "collections.defaultdict",
    ),
    _p(
        """
def merged(first, *others):
    result = dict(first)
    for other in others:
        result.update(other)
    return result
""",
        "assert merged({'R': 'Red'}, {'G': 'Green'}, {'R': 'Rot'}) == {'R': 'Rot', 'G': 'Green'}",
        ("update(other)", "update(first)"),
    ),
    _p(
        """
def evens(limit):
    for i in range(0, limit, 2):
        yield i
""",
        "assert list(evens(7)) == [0, 2, 4, 6]",
        ("0, limit", "1, limit"),
    ),
    _p(
        """
def transposed(matrix):
    return [list(row) for row in zip(*matrix)]
""",
        "assert transposed([[1, 2], [3, 4], [5, 6]]) == [[1, 3, 5], [2, 4, 6]]",
        ("list(row)", "tuple(row)"),
    ),
    _p(
        """
def divided(a, b):
    try:
        return a / b
    except ZeroDivisionError:
        return None
""",
        """
assert divided(1, 4) == 0.25
assert divided(1, 0) is None
""",
        ("return None", "return 0"),
    ),
    _p(
        """
def complex_length(a, b):
    return abs(complex(a, b))
""",
        "assert complex_length(3, 4) == 5.0",
        ("abs(complex(a, b))", "complex(a, b)"),
    ),
    _p(
        """
def rounded(value):
    return f"{value:.2f}"
""",
        "assert rounded(3.14159) == '3.14'",
        (".2f", ".3f"),
    ),
    _p(
        """
def kind(value):
    match value:
        case int():
            return "whole"
        case str():
            return "text"
        case _:
            return "other"
""",
        "assert kind('a') == 'text'",
        ('"text"', '"texts"'),
        "match",
    ),
    _p(
        """
def newman(n, memo={0: 0, 1: 1, 2: 1}):
    if n not in memo:
        memo[n] = newman(newman(n - 1)) + newman(n - newman(n - 1))
    return memo[n]
""",
        """
assert newman(10) == 6
assert newman(3) == 2
""",
        ("return memo[n]", "return memo[n] + 1"),
    ),
    _p(
        """
def parenthesized(text):
    open_of = {")": "(", "]": "[", "}": "{"}
    stack = []
    for c in text:
        if c in open_of.values():
            stack.append(c)
        elif c in open_of:
            if not stack or stack.pop() != open_of[c]:
                return False
    return not stack
""",
        """
assert parenthesized("(){}[]") == True
assert parenthesized("([)]") == False
assert parenthesized("(") == False
""",
        ("return not stack", "return True"),
    ),
    _p(
        """
def hanoi(n, a="A", b="B", c="C"):
    if n == 0:
        return []
    return hanoi(n - 1, a, c, b) + [(a, c)] + hanoi(n - 1, b, a, c)
""",
        "assert hanoi(2) == [('A', 'B'), ('A', 'C'), ('B', 'C')]",
        ("(a, c)]", "(c, a)]"),
    ),
    _p(
        """
def power_set(items):
    subsets = [[]]
    for item in items:
        subsets += [each + [item] for each in subsets]
    return subsets
""",
        "assert sorted(power_set([1, 2])) == [[], [1], [1, 2], [2]]",
        ("each + [item]", "[item]"),
    ),
    _p(
        """
def sum_of_digits(n):
    return sum(int(d) for d in str(abs(n)))
""",
        """
assert sum_of_digits(345) == 12
assert sum_of_digits(-12) == 3
""",
        ("abs(n)", "n"),
    ),
)
