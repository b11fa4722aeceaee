"""Single changes of a C file, each of which its unit tests should notice.

tree-sitter parses the file, macros and all, without its includes; the compiler decides whether two arguments have the
same type, because with our warnings as errors other swaps don't compile. Only code in functions is changed: numbers in
enums and tables are choices, not logic. Text for people (logs, error messages, names in profiles) and asserts are left
alone, as is code that only the simulator's build has, and kill(), which might hit another process.
"""

import re
from typing import NamedTuple

import tree_sitter
import tree_sitter_c

PARSER = tree_sitter.Parser(tree_sitter.Language(tree_sitter_c.language()))

NEGATED = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "==": "!=", "!=": "=="}
MOVED = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}

LEFT_ALONE = re.compile(r"(static_)?assert|_Static_assert|log_\w+|error_(set|wrap|note)\w*|kill|defined|"
                        r"MARK|RARELY|PROFILE")
# The loss of one shows only under load, or after a power cut.
HELD = re.compile(r"(\w+_)?(f(data)?sync|(un)?lock|rdlock|wrlock|signal|broadcast|wake_raise)")
SAME_EITHER_WAY = re.compile(r"fmin|fmax|memcmp|strcmp|sodium_memcmp|sodium_compare|calloc|swap\w*")
JUMPS = ("return_statement", "goto_statement", "break_statement", "continue_statement")
LITERALS = ("string_literal", "concatenated_string", "number_literal", "char_literal", "true", "false", "null")


class Change(NamedTuple):
    """Replaces bytes start..end of the file by text."""
    kind: str
    start: int
    end: int
    text: str


def text_of(node):
    return node.text.decode()


def inside(node):
    """The content of parentheses."""
    while node.type == "parenthesized_expression":
        node = node.named_children[0]
    return node


def is_comparison(node):
    return node.type == "binary_expression" and text_of(node.child_by_field_name("operator")) in NEGATED


def ends_in_jump(statement):
    if statement.type == "compound_statement":
        inner = [child for child in statement.named_children if child.type != "comment"]
        return bool(inner) and inner[-1].type in JUMPS
    return statement.type in JUMPS


def called(node):
    return text_of(node.child_by_field_name("function")) if node.type == "call_expression" else ""


# --- The changes for each kind of node: (kind, node, text) ---


def of_binary(node):
    left, operator, right = (node.child_by_field_name(name) for name in ("left", "operator", "right"))
    sign = text_of(operator)
    if sign in NEGATED:
        yield "comparison flipped", operator, NEGATED[sign]
    if sign in MOVED:
        yield "bound off by one", operator, MOVED[sign]
    if sign in ("&&", "||"):
        yield "check dropped", node, text_of(left)
        yield "check dropped", node, text_of(right)


def of_condition(node):
    """A single comparison is negated in place."""
    condition = node.child_by_field_name("condition")
    if condition is not None and not is_comparison(inside(condition)):
        yield "check negated", condition, f"(!({text_of(condition)}))"


def of_if(node):
    yield from of_condition(node)
    condition = node.child_by_field_name("condition")
    early = ends_in_jump(node.child_by_field_name("consequence")) and not node.child_by_field_name("alternative")
    yield "early return dropped" if early else "check dropped", condition, f"(0 && {text_of(condition)})"


def of_statement(node):
    """The semicolon stays."""
    done = node.named_children[0] if node.named_children else None
    if done is None or done.type not in ("assignment_expression", "update_expression", "call_expression"):
        return
    kind = "lock or sync dropped" if HELD.fullmatch(called(done)) else "statement dropped"
    yield kind, node, ";"


def of_call(node):
    name = called(node)
    if HELD.fullmatch(name) and node.parent.type != "expression_statement":
        yield "lock or sync dropped", node, "0"
    if SAME_EITHER_WAY.fullmatch(name):
        return
    arguments = [child for child in node.child_by_field_name("arguments").named_children if child.type != "comment"]
    for a, b in zip(arguments, arguments[1:]):
        if text_of(a) != text_of(b) and "string" not in a.type + b.type and not {a.type, b.type} <= set(LITERALS):
            yield "arguments swapped", (a, b), f"{text_of(b)}, {text_of(a)}"


def of_number(node):
    """One more; one becomes zero; a fraction is doubled."""
    whole = re.fullmatch(r"(0[xX][0-9a-fA-F]+|\d+)([uUlL]*)", text_of(node))
    fraction = re.fullmatch(r"([\d.]+(?:[eE][-+]?\d+)?)(f?)", text_of(node))
    parent = node.parent
    if parent.type in ("array_declarator", "case_statement", "initializer_list", "enumerator"):
        return
    if whole and parent.type == "unary_expression":  # -1 becomes 0
        yield "constant changed", parent, "0" + whole[2]
    elif whole:
        value = int(whole[1], 0 if whole[1][:2].lower() == "0x" else 10)
        beside = parent.type == "binary_expression" and text_of(parent.child_by_field_name("operator")) in "+-"
        kind = "bound off by one" if beside and value == 1 else "constant changed"
        yield kind, node, f"{0 if value == 1 else value + 1}{whole[2]}"
    elif fraction:
        text = "1.0" + fraction[2] if float(fraction[1]) == 0 else f"({text_of(node)} * 2)"
        yield "constant changed", node, text


def of_truth(node):
    yield "constant changed", node, "false" if node.type == "true" else "true"


OF = {
    "binary_expression": of_binary,
    "if_statement": of_if,
    "while_statement": of_condition,
    "conditional_expression": of_condition,
    "expression_statement": of_statement,
    "call_expression": of_call,
    "number_literal": of_number,
    "true": of_truth,
    "false": of_truth,
}


def walk(node):
    if LEFT_ALONE.fullmatch(called(node)):
        return
    if node.type == "expression_statement" and node.named_children and \
            LEFT_ALONE.fullmatch(called(node.named_children[0])):
        return
    for kind, where, text in OF.get(node.type, lambda _: ())(node):
        first, last = where if isinstance(where, tuple) else (where, where)
        yield Change(kind, first.start_byte, last.end_byte, text)
    condition = node.child_by_field_name("condition") if node.type.startswith("preproc_") else None
    for child in node.named_children:
        if child != condition:
            yield from walk(child)


def functions(node):
    if node.type == "function_definition":
        yield node
    else:
        for child in node.named_children:
            yield from functions(child)


def changes_of(source):
    """The changes of a file's bytes, in the order of the text."""
    found = [change for function in functions(PARSER.parse(source).root_node)
             for change in walk(function.child_by_field_name("body"))]
    return sorted(set(found), key=lambda change: (change.start, change.end, change.text))
