"""Figure of the bridge errors: Paper B's 2 (impact of the momentum)."""

from matplotlib.figure import Figure

from fedhet_app.analysis.plots.style import finish, looks, new_figure
from fedhet_app.analysis.study import Section
from fedhet_app.analysis.tables.bridge import bridged, courses, momentum_of, usual_variant

_PANELS = {
    "gradient": r"$\frac{1}{t}\sum\,\|\nabla F\|^2$",
    "delta": r"$t^{-1/2}\sum\,\hat{\delta}$",
    "epsilon": r"$\frac{1}{t}\sum\,\hat{\varepsilon}$",
}


def bridge_errors(section: Section) -> Figure | None:
    """Draw gradient norm and bridge errors over the feasible rounds, a line for each seed."""
    labels, variant = bridged(section), usual_variant(section)
    found = {label: courses(section.of(label), variant) for label in labels}
    if not any(len(course.rounds) for own in found.values() for course in own):
        return None
    momenta = [momentum_of(section.of(label)[0]) for label in labels]
    told = len(set(momenta)) == len(momenta)
    styles = looks(f"line {number}" for number in range(len(labels)))
    figure, panels = new_figure(3, width=11.0, height=3.4, share_y=False)
    for label, momentum, (colour, dash, _) in zip(labels, momenta, styles.values(), strict=True):
        name = rf"$\mu$ = {momentum:g}" if told else label
        feasible = [course for course in found[label] if len(course.rounds)]
        if not feasible:
            name = f"{name}: no feasible round"
            panels[0].plot([], [], color=colour, linestyle=dash, label=name)
        for course in feasible:
            for axes, curve in zip(panels, _PANELS, strict=True):
                values = getattr(course.estimates, curve)
                # One feasible round alone would be no line.
                marker = "o" if len(values) == 1 else ""
                axes.plot(
                    course.rounds, values, color=colour, linestyle=dash, marker=marker, label=name
                )
    for axes, title in zip(panels, _PANELS.values(), strict=True):
        axes.set_title(title)
        axes.set(xlabel="round")
    panels[0].set(yscale="log", ylabel=f"gamma {variant}, feasible rounds")
    return finish(figure)
