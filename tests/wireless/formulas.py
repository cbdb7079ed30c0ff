"""The formulas of the package ``tr3gpp``, which has TR 38.901's as LaTeX, turned into functions.

Nothing of ours takes part: signs, branches and constants are those that the package quotes.
"""

import re

import numpy as np
from tr3gpp import tr38901

NAMES = {
    r"d_{2D-out}": "d2D", r"d_{2D-in}": "d2D", r"d_{2D}": "d2D", r"d_{3D}": "d3D",
    r"d'_{BP}": "dBP", r"f_c": "fc", r"h_{UT}": "hUT", r"h_{BS}": "hBS", r"C'(hUT)": "C",
    r"L_{glass}": "Lglass", r"L_{IRRglass}": "LIRR", r"L_{concrete}": "Lconcrete",
}  # fmt: skip
FUNCTIONS = {"log10": np.log10, "exp": np.exp, "maximum": np.maximum, "where": np.where, "abs": abs}


def expression(latex):
    """One formula without branches, as Python."""
    text = latex
    for sign, name in NAMES.items():
        text = text.replace(sign, name)
    for old, new in ((r"\left", ""), (r"\right", ""), (r"\,", ""), (r"\cdot", "*"), ("[", "("),
                     ("]", ")"), (r"\log_{10}", " log10"), (r"\exp", " exp")):  # fmt: skip
        text = text.replace(old, new)
    while "\\dfrac" in text:  # innermost first: its braces hold no other
        text = re.sub(r"\\dfrac\{([^{}]*)\}\{([^{}]*)\}", r"((\1)/(\2))", text, count=1)
    text = re.sub(r"\^\{([^{}]*)\}", r"**(\1)", text).replace("^", "**")
    text = re.sub(r"(?<=[\d)])\s*(?=(log10|exp)\b)", "*", text)  # 22 log10, ) exp
    text = re.sub(r"(?<=[\d)])\s*\((?!\))", "*(", text)  # 0.3( and )(
    text = re.sub(r"(log10|exp)\*\(", r"\1(", text)  # but not log10*(
    text = re.sub(r"\bC\s*\(", "C*(", text)
    text = re.sub(r"(?<![\w.])(\d+\.?\d*)\s*([a-zA-Z]\w*)", r"\1*\2", text)  # 0.2f
    return re.sub(r"(\))\s*([A-Za-z])", r"\1*\2", text)


def branches(latex):
    """[(condition, expression)] of a ``cases`` environment."""
    inside = re.search(r"\\begin\{cases\}(.*?)\\end\{cases\}", latex, re.DOTALL)[1]
    found = []
    for row in inside.split(r"\\"):
        value, condition = row.split("&")
        for old, new in (*NAMES.items(), (r"\le", "<="), (r"10km", "10000"), ("5km", "5000")):
            condition = condition.replace(old, new)
        condition = re.sub(r"(\d)m\b", r"\1", condition).strip()
        signs = re.split(r"\s*(<=|<)\s*", condition)
        pairs = [f"({signs[i]} {signs[i + 1]} {signs[i + 2]})" for i in range(0, len(signs) - 2, 2)]
        found.append((" & ".join(pairs), value))
    return found


def evaluate(text, **values):
    return eval(text, {"__builtins__": {}}, {**FUNCTIONS, **values})


def los_loss(scenario, **values):
    formula = tr38901.section("7.4").pathloss(scenario=scenario, condition="LOS").formula
    if "cases" not in formula:
        return evaluate(expression(formula.split("=", 1)[1]), **values)
    parts = dict(
        part.strip().removeprefix(r"\quad").strip().split(" = ", 1)
        for part in formula.split(";")[1:]
    )
    (near, first), (_, second) = branches(formula)
    assert (first.strip(), second.strip()) == ("PL_1", "PL_2")
    return np.where(
        evaluate(near, **values),
        evaluate(expression(parts["PL_1"]), **values),
        evaluate(expression(parts["PL_2"]), **values),
    )


def nlos_loss(scenario, **values):
    formula = tr38901.section("7.4").pathloss(scenario=scenario, condition="NLOS").formula
    assert r"\max(PL_" in formula
    inner = formula.split(r"\quad")[-1].split(" = ", 1)[1]
    return np.maximum(los_loss(scenario, **values), evaluate(expression(inner), **values))


def los_probability(scenario, **values):
    formula = tr38901.section("7.4").los_probability(scenario=scenario).formula
    first, *rest = formula.split(r"; \quad")
    if rest:  # C' of UMa
        values["C"] = choose(branches(rest[0]), **values)
    return choose(branches(first), **values)


def choose(found, **values):
    result = np.nan
    with np.errstate(invalid="ignore"):  # (hUT − 13)^1.5 of a branch that is not taken
        for condition, value in reversed(found):
            chosen = evaluate(expression(value), **values)
            result = np.where(evaluate(condition, **values), chosen, result)
    return result


def wall(model, gigahertz):
    """PL_tw and σ_P of a building."""
    walls = tr38901.section("7.4").o2i_penetration_loss
    named = {m.material: m.formula.split(" = ")[1] for m in walls.materials}
    losses = {
        name: evaluate(expression(named[material]), f=gigahertz)
        for name, material in (
            ("Lglass", "Standard multi-pane glass"),
            ("LIRR", "IRR glass"),
            ("Lconcrete", "Concrete"),
        )
    }
    (entry,) = [one for one in walls.building_models if one.model == model]
    return evaluate(expression(entry.pl_tw_formula), **losses), entry.std_p_db


def shadowing(scenario, condition):
    (entry,) = (
        tr38901.section("7.4").pathloss(scenario=scenario, condition=condition).shadow_fading_std_db
    )
    return entry.value_db


def correlation(distance, length):
    formula = tr38901.section("7.4").shadow_fading_autocorrelation.formula.split(" = ")[1]
    assert formula == r"e^{-|\Delta x| / d_{cor}}"
    return np.exp(-abs(distance) / length)
