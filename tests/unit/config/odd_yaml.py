"""YAML that PyYAML parses, and whose values it can't make, or makes of what no job file has."""

NO_KEY = "a section or list stands where a key should"
_LONG = ":".join(["1"] * 300)

NO_VALUES = {
    "args:\n  {[a]: 1}": f"{NO_KEY} (line 2)",
    "? [a, b]": f"{NO_KEY} (line 1)",
    "{{a: 1}: 1}": f"{NO_KEY} (line 1)",
    "a: 1\nb: !!bool foo": "what is tagged bool is none (line 2)",
    "!!float ''": "what is tagged float is none (line 1)",
    f"!!float {_LONG}": "what is tagged float is none (line 1)",
    "!!int []": "what is tagged int is none (line 1)",
    "a: !!map b": "what is tagged map is none (line 1)",
    "!!timestamp foo": "'tag:yaml.org,2002:timestamp' (line 1)",
    "!!set [a]": "'tag:yaml.org,2002:set' (line 1)",
    "args: {a: !!binary gIGC}": "'tag:yaml.org,2002:binary' (line 1)",
    "a: &a {b: 1}\nc: {!!merge x: *a}": "'tag:yaml.org,2002:merge' (line 2)",
    'a: 1\nb: "\\UFFFFFFFF"': "Python int too large to convert to C int (line 2)",
    "args: &a {b: *a}": "nested too deeply (more than 100 levels, or a ring)",
}
"""Texts, and what is said of each."""
