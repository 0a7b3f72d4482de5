"""Towers of functions that never mix, with names that only this run knows.

Each tower is a chain of functions; the last one works. What calls the next is drawn at random: a plain call, one by C
code, a generator, a method. Prints every tower, outermost function first, as `name:line`, then `ready`, and works in all
of them in turn until it is killed. Python 3.8 and later.
"""

import os
import random
import sys
import threading

DEPTHS = (5, 20, 60)
WAYS = ("plain", "plain", "plain", "native", "generator", "method")


def draw(rng):
    return "".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(12))


def made(way, name, following):
    """A function that calls the next in this way; C code hands over an argument, which an adapter takes."""
    if way == "native":
        return [f"def {name}():", f"    return sorted((0,), key=with_one_{following})"]
    if way == "generator":
        return [f"def {name}_made():", f"    yield {following}()", f"def {name}():", f"    return next({name}_made())"]
    if way == "method":
        called = [f"class Of_{name}:", f"    def {name}(self):", f"        return {following}()"]
        return called + [f"{name} = Of_{name}().{name}"]
    return [f"def {name}():", f"    return {following}()"]


def tower(rng, depth):
    names = [draw(rng) for _ in range(depth)]
    lines = []
    for name, following in zip(names, names[1:]):
        way = rng.choice(WAYS)
        if way == "native":
            lines += [f"def with_one_{following}(_):", f"    return {following}()"]
        lines += made(way, name, following)
    lines += [f"def {names[-1]}():", "    n = 0", "    for i in range(300):", "        n += i", "    return n"]
    text = "\n".join(lines)
    path = os.path.join(sys.argv[1], names[0] + ".py")
    with open(path, "w") as file:
        file.write(text)
    space = {"__name__": "towers"}
    exec(compile(text, path, "exec"), space)
    return path, space, names


def said(function):
    code = function.__code__
    return "%s:%d" % (getattr(code, "co_qualname", code.co_name), code.co_firstlineno)


def chain(space, names):
    """The frames of a stack in the last function, outermost first."""
    frames = []
    for name in names:
        function = space[name]
        if "with_one_" + name in space:
            frames.append(said(space["with_one_" + name]))
        frames.append(said(getattr(function, "__func__", function)))
        if name + "_made" in space:
            frames.append(said(space[name + "_made"]))
    return frames


def spin(outermost):
    while True:
        for call in outermost:
            call()


def main():
    rng = random.SystemRandom()
    outermost = []
    for depth in DEPTHS:
        path, space, names = tower(rng, depth)
        print("tower", path, *chain(space, names))
        outermost.append(space[names[0]])
    print("ready", "%d.%d" % sys.version_info[:2], flush=True)
    if len(sys.argv) > 2:
        threading.Thread(target=spin, args=(outermost,)).start()
    spin(outermost)


main()
