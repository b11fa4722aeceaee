# Rooms include each other in one direction only: trainer -> serve -> worker -> ps -> net -> base; worker -> cuda -> ps;
# serve, worker -> observe -> net. A source includes its own header first.
BEGIN {
    knows["base"] = " base "
    knows["net"] = " net base "
    knows["observe"] = " observe net base "
    knows["ps"] = " ps net base "
    knows["cuda"] = " cuda ps base "
    knows["worker"] = " worker cuda ps observe net base "
    knows["serve"] = " serve worker ps observe net base "
    for (i = 1; i < ARGC; i++)
        given[ARGV[i]] = 1
}

function room(path) {
    return path ~ /\// ? substr(path, 1, index(path, "/") - 1) : "trainer"
}

function report(text) {
    print FILENAME ":" FNR ": " text
    failed = 1
}

FNR == 1 {
    own = FILENAME
    if (!sub(/\.c$/, ".h", own) || !(own in given))
        own = ""
}

# So the header shows that it needs nothing before it.
own != "" && /^#[ \t]*include/ {
    if ($2 != "\"" own "\"")
        report("the file's own header is included first")
    own = ""
}

/^#[ \t]*include[ \t]*"/ {
    split($0, part, "\"")
    to = part[2]
    from = room(FILENAME)
    if (to !~ /\//)
        report("\"" to "\": own headers are included relative to the root, as in \"base/error.h\"")
    else if (from != "trainer" && index(knows[from], " " room(to) " ") == 0)
        report(from "/ must not know " room(to) "/: \"" to "\"")
}

/^#[ \t]*include[ \t]*<(base|net|observe|ps|worker|cuda|serve)\// {
    report("own headers are included with quotes")
}

END { exit failed }
