'use strict';

// Displays the run: queries /api, listens to /api/stream, and draws. The run's texts are inserted as text, never as
// markup. Only the open view is drawn, and only what has changed: a fleet of 1,000 costs no more than its visible rows.

// --- Helpers ---

const isNothing = value => value === null || value === undefined;
const byId = id => document.getElementById(id);

function make(tag, attributes, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {}))
        if (!isNothing(value) && value !== false) node.setAttribute(name, value === true ? '' : value);
    node.append(...children.filter(child => !isNothing(child)));
    return node;
}

function setText(node, text) {
    if (node.textContent !== text) node.textContent = text;
}

const isNumber = value => typeof value === 'number' && Number.isFinite(value);
const list = value => (Array.isArray(value) ? value : []);
const plural = (value, unit) => `${count(value)} ${unit}${value === 1 ? '' : 's'}`;
const word = value => (isNothing(value) ? '' : String(value));
const pause = ms => new Promise(resolve => setTimeout(resolve, ms));

function stored(area, name, value) {
    try {
        if (value === undefined) return area.getItem(name);
        if (value === null) area.removeItem(name);
        else area.setItem(name, value);
    } catch { /* a browser that keeps nothing: the page does without */ }
    return null;
}

// --- Formatting ---

const NONE = '–';
const grouped = new Intl.NumberFormat('en', {maximumFractionDigits: 0});
const short = new Intl.NumberFormat('en', {notation: 'compact', maximumFractionDigits: 2});
const plain = new Intl.NumberFormat('en', {maximumSignificantDigits: 4});

const count = value => (isNumber(value) ? grouped.format(value) : NONE);
const compact = value => (isNumber(value) ? short.format(value) : NONE);

function number(value) {
    if (!isNumber(value)) return NONE;
    const size = Math.abs(value);
    if (size >= 1000) return grouped.format(value);
    if (size > 0 && size < 1e-4) return value.toExponential(2);
    return plain.format(value);
}

// With the same number of decimals in every row, for tables.
const fixed = (value, places) => (isNumber(value) && Math.abs(value) < 1000 ? value.toFixed(places) : number(value));

function bytes(value) {
    if (!isNumber(value)) return NONE;
    let unit = 0;
    for (; Math.abs(value) >= 1024 && unit < 5; unit++) value /= 1024;
    return `${unit && Math.abs(value) < 100 ? value.toFixed(1) : value.toFixed(0)} ${['B', 'KiB', 'MiB', 'GiB', 'TiB',
        'PiB'][unit]}`;
}

const percent = value => (isNumber(value) ? `${value.toFixed(value < 10 ? 1 : 0)}%` : NONE);
const two = value => String(Math.floor(value)).padStart(2, '0');

function duration(seconds) {
    if (!isNumber(seconds)) return NONE;
    if (seconds < 1) return `${Math.max(0, Math.round(seconds * 1000))} ms`;
    if (seconds < 10) return `${seconds.toFixed(1)} s`;
    if (seconds < 60) return `${Math.round(seconds)} s`;
    const days = Math.floor(seconds / 86400), hours = Math.floor(seconds / 3600) % 24, rest = seconds % 3600;
    if (seconds < 3600) return `${Math.floor(rest / 60)}:${two(rest % 60)}`;
    return days ? `${days} d ${hours} h` : `${hours}:${two(rest / 60)}:${two(rest % 60)}`;
}

function clock(seconds) {
    if (!isNumber(seconds)) return NONE;
    const date = new Date(seconds * 1000);
    return `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

function moment(seconds) {
    if (!isNumber(seconds)) return NONE;
    const date = new Date(seconds * 1000);
    const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
    return date.toDateString() === new Date().toDateString() ? clock(seconds) : `${day} ${clock(seconds)}`;
}

const iso = seconds => (isNumber(seconds) && Math.abs(seconds) < 8e12 ? new Date(seconds * 1000).toISOString() : '');
const since = seconds => (seconds < 1 ? 'just now' : `${duration(seconds)} ago`);
const ago = seconds => (isNumber(seconds) ? since(now() - seconds) : NONE);
const isShare = name => /accuracy/.test(name);
const metricText = (name, value) => (isShare(name) && isNumber(value) ? `${(value * 100).toFixed(2)}%` : number(value));
const SHORT = {f1: 'F1', mcc: 'MCC', mae: 'MAE', rmse: 'RMSE', r2: 'R²', roc_auc: 'ROC AUC'};
const titled = name => (Object.hasOwn(SHORT, name) ? SHORT[name]
    : name.charAt(0).toUpperCase() + name.slice(1).replace(/_/g, ' '));

// Each series' name, its unit, and the format of its values.
const SERIES = {
    loss: ['Loss', 'mean per example', number],
    learning_rate: ['Learning rate', 'per step', number],
    steps_per_s: ['Steps per second', 'steps/s', number],
    examples_per_s: ['Examples per second', 'examples/s', compact],
    memory_bytes: ['Memory of this process', 'bytes', bytes],
    cpu_percent: ['CPU of this process', '% of one CPU', percent],
    gpu_percent: ['GPU', '% of the time', percent],
    bytes_in_per_s: ['Received per second', 'bytes/s', bytes],
    bytes_out_per_s: ['Sent per second', 'bytes/s', bytes],
};

const isMetric = name => name.startsWith('metric:');

function describeSeries(name) {
    if (Object.hasOwn(SERIES, name)) return SERIES[name];
    if (!isMetric(name)) return [titled(name), '', number];
    const metric = name.slice(7);
    return [`${titled(metric)} (validation)`, isShare(metric) ? '% of examples' : '',
        value => metricText(metric, value)];
}

// --- State ---

const page = {
    runs: [],        // {id, name, color, picked, status, points, events, about, series}
    shown: null,     // one of runs
    view: 'overview',
    link: 'wait',
    linkText: 'connecting',
    answered: 0,     // when it last answered, by this machine's clock
    skew: 0,         // the run's clock less this one's
    axis: 'step',
    smoothing: 0,
    logarithmic: false,
    marks: true,
    zoom: null,
    sort: {key: 'name', down: false},
};

const now = () => Date.now() / 1000 + page.skew;
const statusOf = run => ({run: {}, progress: {}, checkpoints: {}, ...(run && run.status)});
const status = () => statusOf(page.shown);
const runOf = () => status().run;
const progressOf = () => status().progress;
const members = () => list(status().members);
const isEnded = run => ['done', 'interrupted', 'failed'].includes(run.state);
const isAlone = () => members().length < 2 && ['local', 'dashboard'].includes(runOf().role);
const aboutOf = run => ({settings: {}, ...(run && run.about)});
const picked = () => page.runs.filter(run => run.picked || run === page.shown);

// --- Requests ---

class Refused extends Error {
    constructor(code, text) {
        super(text);
        this.code = code;
    }
}

function address(path, run, parameters) {
    const query = new URLSearchParams({...(run ? {run: run.id} : {}), ...parameters}).toString();
    return `api/${path}${query ? `?${query}` : ''}`;
}

function headers(more) {
    const token = stored(sessionStorage, 'token');
    return {...(token ? {Authorization: `Bearer ${token}`} : {}), ...more};
}

async function ask(path, run, parameters) {
    const answer = await fetch(address(path, run, parameters), {headers: headers(), cache: 'no-store',
        signal: AbortSignal.timeout(20000)});
    if (!answer.ok) throw new Refused(answer.status, `${path}: ${answer.status}`);
    return answer.json();
}

// The token may come in the URL: it is kept for this tab, and removed from the URL at once.
function takeToken() {
    const found = /^#(?:.*&)?token=([^&]*)/.exec(location.hash);
    if (!found) return;
    stored(sessionStorage, 'token', decodeURIComponent(found[1]));
    history.replaceState(null, '', location.pathname + location.search);
}

function askToken() {
    const dialog = byId('token-dialog');
    setText(byId('token-wrong'), stored(sessionStorage, 'token') ? 'Wrong token.' : '');
    return new Promise(resolve => {
        dialog.oncancel = event => event.preventDefault();
        byId('token-form').onsubmit = event => {
            event.preventDefault();
            stored(sessionStorage, 'token', byId('token').value.trim());
            byId('token').value = '';
            dialog.close();
            resolve();
        };
        if (!dialog.open) dialog.showModal();
    });
}

// --- Curves ---

const MOST_POINTS = 9000;

const noPoints = () => ({time: [], step: [], values: {}});

// Appends buckets, replacing existing ones from the first of their times on: the newest was not full yet.
function addPoints(points, part, before = Infinity) {
    const times = list(part && part.time), steps = list(part && part.global_step), values = (part && part.values) || {};
    if (!times.length) return;
    let keep = points.time.length;
    while (keep && points.time[keep - 1] >= times[0]) keep--;
    points.time.length = points.step.length = keep;
    for (const name of new Set([...Object.keys(points.values), ...Object.keys(values)])) {
        const column = points.values[name] || (points.values[name] = new Array(keep).fill(null));
        column.length = keep;
        const more = list(values[name]);
        for (let i = 0; i < times.length && times[i] < before; i++) column.push(isNumber(more[i]) ? more[i] : null);
    }
    for (let i = 0; i < times.length && times[i] < before; i++) {
        points.time.push(times[i]);
        points.step.push(isNumber(steps[i]) ? steps[i] : null);
    }
}

function pointsOf(answer) {
    const points = noPoints();
    for (const name of list(answer.series)) points.values[name] = [];
    const first = list(answer.recent && answer.recent.time)[0];
    addPoints(points, answer.whole, first === undefined ? Infinity : first);
    addPoints(points, answer.recent);
    return points;
}

// One curve as [x, y] with increasing x: where a restore went back to an earlier step, the later values count.
function curve(run, name) {
    const points = run.points, column = points.values[name] || [], pairs = [];
    for (let i = 0; i < column.length; i++) {
        if (column[i] === null) continue;
        const x = page.axis === 'step' ? points.step[i]
            : page.axis === 'time' ? points.time[i] * 1000 : points.time[i] - points.time[0];
        if (x === null) continue;
        while (pairs.length && pairs[pairs.length - 1][0] >= x) pairs.pop();
        pairs.push([x, column[i]]);
    }
    return pairs;
}

function smooth(pairs, weight) {
    let sum = 0, share = 1;
    return pairs.map(([x, y]) => {
        sum = sum * weight + y * (1 - weight);
        share *= weight;
        const mean = sum / (1 - share);
        return [x, Math.abs(mean - y) <= 1e-9 * Math.abs(y) ? y : mean]; // what is constant stays so
    });
}

function thin(pairs, most) {
    const every = Math.ceil(pairs.length / most);
    return every < 2 ? pairs : pairs.filter((_, i) => i % every === 0 || i === pairs.length - 1);
}

// Rows for the charts library: x, then each curve's value at x, or null.
function rowsOf(curves) {
    if (curves.length === 1) return curves[0];
    const rows = new Map();
    curves.forEach((pairs, which) => {
        for (const [x, y] of pairs) {
            let row = rows.get(x);
            if (!row) rows.set(x, row = [x, ...new Array(curves.length).fill(null)]);
            row[which + 1] = y;
        }
    });
    return [...rows.values()].sort((a, b) => a[0] - b[0]);
}

// --- Colours ---

const probe = make('span', {class: 'probe', 'aria-hidden': 'true'});

function color(name) {
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color;
}

// Ticks at multiples of 1, 2 or 5, and as many decimals as tell them apart.
function niceStep(from, to, most) {
    const rough = (to - from) / Math.max(2, most), size = 10 ** Math.floor(Math.log10(rough));
    return [1, 2, 5, 10].map(times => times * size).find(step => step >= rough) || size;
}

const decimals = step => Math.max(0, Math.min(8, -Math.floor(Math.log10(step) + 1e-9)));

function tickLabel(format, name, value, step) {
    if (format === bytes || format === compact) return format(value);
    if (isShare(name)) return `${(value * 100).toFixed(decimals(step * 100))}%`;
    if (format === percent) return `${value.toFixed(decimals(step))}%`;
    if (Math.abs(value) >= 1e5) return compact(value);
    return step < 1e-5 && value !== 0 ? value.toExponential(1) : value.toFixed(decimals(step));
}

function ticksOf(from, to, most, label, unit = 1) {
    const ticks = [];
    if (!(to > from)) return [{v: from, label: label(from, Math.abs(from) || 1)}];
    const step = niceStep(from / unit, to / unit, most) * unit;
    for (let i = Math.ceil(from / step - 1e-9); i * step <= to + step * 1e-9; i++)
        ticks.push({v: i * step + 0, label: label(i * step + 0, step)}); // not -0
    return ticks;
}

const stepLabel = (value, step) => (value >= 10000 && step >= value / 1000 ? compact(value) : count(value));

const faint = value => value.replace(/^rgb\(/, 'rgba(').replace(/\)$/, ', 0.28)');

// --- Charts ---

// The library's legends and labels write markup and style attributes, so only its axes and grid are used.
if (typeof Dygraph !== 'undefined')
    Dygraph.PLUGINS = Dygraph.PLUGINS.filter(plugin => /Axes|Grid/.test(String(plugin.prototype)));

const RELATIVE = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 86400, 172800, 604800];
const MARKED = {lost: 'bad', error: 'bad', restored: 'series-4', rollout: 'series-4', started: 'good'};

function relativeTicks(from, to, pixels) {
    const wanted = Math.max(2, pixels / 80), step = RELATIVE.find(each => (to - from) / each <= wanted) || 2592000;
    const ticks = [];
    for (let at = Math.ceil(from / step) * step; at <= to; at += step) ticks.push({v: at, label: duration(at)});
    return ticks;
}

const AXES = {step: 'step', time: 'time of day', relative: 'time since the start'};
const xTitle = x => (page.axis === 'step' ? `step ${count(x)}` : page.axis === 'time' ? moment(x / 1000) : duration(x));

// The last x of a run.
function endOf({points}) {
    const last = points.time.length - 1;
    return page.axis === 'step' ? Math.max(...points.step) : page.axis === 'time' ? points.time[last] * 1000
        : points.time[last] - points.time[0];
}

class Chart {
    constructor(name, group) {
        [this.title, this.unit, this.format] = describeSeries(name);
        this.name = name;
        this.parts = name === 'loss' ? ['loss', 'metric:loss'] : [name]; // training and validation share a chart
        this.group = group;
        this.reading = make('div', {class: 'reading'});
        this.plot = make('div', {class: 'plot', tabindex: '0', role: 'group', 'aria-roledescription': 'chart',
            'aria-describedby': 'chart-hint'});
        this.hint = make('span', {class: 'unit'});
        this.cross = make('div', {class: 'cross', hidden: true});
        this.axis = make('div', {class: 'axis', 'aria-hidden': 'true'});
        this.element = make('figure', {class: 'chart'}, make('figcaption', {}, make('h2', {}, this.title),
            this.hint, this.reading),
            make('div', {class: 'frame'}, this.plot, this.cross), this.axis);
        this.plot.addEventListener('keydown', event => this.key(event));
        new ResizeObserver(() => this.graph && this.graph.resize()).observe(this.plot);
    }

    // Validations are single points, which are neither smoothed nor left out.
    takeCurve(run, part, several) {
        const isPoint = isMetric(part), all = curve(run, part);
        const raw = isPoint ? all : thin(all, several ? 1500 : MOST_POINTS);
        const isRough = page.smoothing > 0 && !isPoint && part !== 'learning_rate';
        const name = this.parts.length > 1 ? (isPoint ? 'validation' : 'training') : '';
        return {run, part, isPoint, raw: isRough ? raw : null, pairs: isRough ? smooth(raw, page.smoothing) : raw,
            label: !several ? name : isPoint && part !== this.name ? '' : run.name, end: endOf(run),
            color: !several && isPoint && part !== this.name ? 'series-2' : run.color,
            pattern: several && isPoint && part !== this.name ? [5, 3] : null};
    }

    update() {
        const runs = picked(), several = runs.length > 1;
        this.curves = runs.flatMap(run => this.parts.map(part => this.takeCurve(run, part, several)))
            .filter(each => each.pairs.length);
        const rough = this.curves.filter(each => each.raw);
        const rows = rowsOf([...this.curves.map(each => each.pairs), ...rough.map(each => each.raw)]);
        const kind = [page.axis, page.logarithmic, document.documentElement.dataset.theme, darkness.matches,
            ...this.curves.map(each => `${each.run.id} ${each.part} ${!each.raw} ${each.pairs.length < 60}`)].join('|');
        if (!rows.length || kind !== this.kind) this.clear();
        if (rows.length && this.graph) this.graph.updateOptions({file: rows});
        else if (rows.length) this.draw(rows, rough);
        else if (!this.plot.firstChild) this.plot.append(make('div', {class: 'empty'}, 'nothing yet'));
        this.kind = kind;
        this.rows = rows;
        setText(this.hint, several && this.parts.length > 1 ? `${this.unit}; dotted: validation` : this.unit);
        setText(this.axis, rows.length ? AXES[page.axis] : '');
        this.read(this.group.hover);
        this.describe();
    }

    clear() {
        if (this.graph) this.graph.destroy();
        this.graph = null;
        this.plot.replaceChildren();
    }

    draw(rows, rough) {
        const series = {}, labels = ['x'];
        this.curves.forEach((each, i) => {
            labels.push(`curve${i}`);
            series[`curve${i}`] = {color: color(each.color), strokeWidth: 1.5, strokePattern: each.pattern,
                drawPoints: each.pairs.length < 60, pointSize: each.isPoint ? 2.5 : 2};
        });
        rough.forEach((each, i) => {
            labels.push(`raw${i}`);
            series[`raw${i}`] = {color: faint(color(each.color)), strokeWidth: 1, highlightCircleSize: 0};
        });
        this.graph = new Dygraph(this.plot, rows, {
            labels, series, legend: 'never', connectSeparatedPoints: true,
            highlightCircleSize: 3, logscale: page.logarithmic, labelsUTC: false, dateWindow: page.zoom,
            gridLineColor: color('line'), axisLineColor: color('strong'), axisLabelFontSize: 11, rightGap: 8,
            xRangePad: 8, yRangePad: 8, animatedZooms: false,
            axes: {
                x: {drawGrid: false, axisLabelWidth: 70, pixelsPerLabel: 80, ...this.xAxis()},
                y: {axisLabelWidth: 58, pixelsPerLabel: 34, ...this.yAxis()},
            },
            underlayCallback: (canvas, area, graph) => this.mark(canvas, area, graph),
            highlightCallback: (event, x) => this.group.point(x),
            unhighlightCallback: () => this.group.point(null),
            drawCallback: (graph, isFirst) => {
                if (!isFirst) this.group.follow(graph);
            },
        });
    }

    yAxis() {
        if (page.logarithmic) return {axisLabelFormatter: value => this.format(value)};
        const label = (value, step) => tickLabel(this.format, this.name, value, step);
        const unit = to => (this.format === bytes ? 1024 ** Math.floor(Math.log2(Math.max(1, to)) / 10) : 1);
        return {ticker: (from, to, pixels) => ticksOf(from, to, pixels / 34, label, unit(to))};
    }

    xAxis() {
        if (page.axis === 'time')
            return {ticker: Dygraph.dateTicker, axisLabelFormatter: Dygraph.dateAxisLabelFormatter};
        if (page.axis === 'relative') return {ticker: relativeTicks};
        return {ticker: (from, to, pixels) => ticksOf(from, to, Math.min(pixels / 60, to - from), stepLabel)
            .filter(tick => Number.isInteger(tick.v))};
    }

    // Events of the run (losses and errors, restores and rollouts), as dashed lines.
    mark(canvas, area, graph) {
        this.markBest(canvas, area, graph);
        if (!page.marks || page.axis === 'relative' || !page.shown) return;
        canvas.save();
        canvas.setLineDash([3, 3]);
        canvas.globalAlpha = 0.7;
        const last = {};
        for (const event of page.shown.events) {
            const x = page.axis === 'time' ? event.time * 1000 : event.step;
            if (!Object.hasOwn(MARKED, event.kind) || !isNumber(x)) continue;
            const at = Math.round(graph.toDomXCoord(x)) + 0.5;
            if (at === last[event.kind] || at < area.x || at > area.x + area.w) continue;
            last[event.kind] = at;
            canvas.strokeStyle = color(MARKED[event.kind]);
            canvas.beginPath();
            canvas.moveTo(at, area.y);
            canvas.lineTo(at, area.y + area.h);
            canvas.stroke();
        }
        canvas.restore();
    }

    // A ring around the best validation of each run, named if there is one run.
    markBest(canvas, area, graph) {
        const bests = list(this.curves).filter(each => each.part === mainMetric(each.run)).map(bestPoint);
        canvas.save();
        canvas.strokeStyle = canvas.fillStyle = color('good');
        canvas.lineWidth = 1.5;
        canvas.font = `11px ${getComputedStyle(document.body).fontFamily}`;
        for (const best of bests.filter(Boolean)) {
            const x = graph.toDomXCoord(best.x), y = graph.toDomYCoord(best.value);
            if (!(x >= area.x && x <= area.x + area.w)) continue;
            canvas.beginPath();
            canvas.arc(x, y, 5.5, 0, 2 * Math.PI);
            canvas.stroke();
            if (picked().length > 1) continue;
            canvas.textAlign = x > area.x + area.w - 80 ? 'right' : 'left';
            canvas.fillText('best', x + (canvas.textAlign === 'left' ? 9 : -9),
                y < area.y + area.h / 2 ? y + 16 : y - 9);
        }
        canvas.restore();
    }

    nearest(pairs, x) {
        let low = 0, high = pairs.length - 1;
        while (low < high) {
            const middle = (low + high) >> 1;
            if (pairs[middle][0] < x) low = middle + 1;
            else high = middle;
        }
        return low > 0 && x - pairs[low - 1][0] < pairs[low][0] - x ? low - 1 : low;
    }

    // The values at x, or the last ones. A run has none after its end; a validation counts until the next.
    valueAt({pairs, isPoint, end}, x) {
        if (x === null) return pairs[pairs.length - 1];
        if (x < pairs[0][0] || x > (isPoint ? end : pairs[pairs.length - 1][0])) return null;
        const pair = pairs[this.nearest(pairs, x)];
        return pair[0] <= x || !isPoint ? pair : pairs[this.nearest(pairs, x) - 1];
    }

    read(x) {
        const parts = [], curves = this.curves || [];
        for (const each of curves) {
            const pair = this.valueAt(each, x);
            const swatch = make('span', {class: each.pattern ? 'swatch dashed' : 'swatch'});
            swatch.style.color = `var(--${each.color})`;
            const at = pair && x !== null && each.isPoint && pair[0] !== x ? ` at ${xTitle(pair[0])}` : '';
            parts.push(make('span', {}, ...(curves.length > 1 ? [swatch] : []), each.label ? `${each.label} ` : '',
                make('b', {}, pair ? this.format(pair[1]) : NONE), at));
        }
        if (x !== null && curves.length) parts.push(make('span', {}, xTitle(x)));
        this.reading.replaceChildren(...parts);
        this.cross.hidden = x === null || !this.graph;
        if (!this.graph) return;
        if (x === null) return this.graph.clearSelection();
        const area = this.graph.getArea(), place = this.graph.toDomXCoord(x);
        this.cross.hidden = place < area.x || place > area.x + area.w;
        this.cross.style.left = `${place}px`;
        this.cross.style.top = `${area.y}px`;
        this.cross.style.height = `${area.h}px`;
        const row = this.nearest(this.rows, x), last = this.rows[this.rows.length - 1][0];
        if (x <= last) this.graph.setSelection(row);
        else this.graph.clearSelection();
    }

    describe() {
        const summaries = (this.curves || []).filter(each => each.pairs.length).map(({label, pairs}) => {
            const values = pairs.map(pair => pair[1]), last = pairs[pairs.length - 1];
            const low = values.reduce((a, b) => Math.min(a, b)), high = values.reduce((a, b) => Math.max(a, b));
            return `${label ? `${label}: ` : ''}${this.format(last[1])} at ${xTitle(last[0])}, ` +
                `lowest ${this.format(low)}, highest ${this.format(high)}`;
        });
        this.plot.setAttribute('aria-label', `${this.title}. ${summaries.join('. ') || 'Nothing yet'}`);
    }

    key(event) {
        if (!this.graph || event.ctrlKey || event.altKey || event.metaKey) return;
        const [from, to] = this.graph.xAxisRange(), width = to - from;
        const moves = {ArrowLeft: [-0.2, -0.2], ArrowRight: [0.2, 0.2], '+': [0.2, -0.2], '=': [0.2, -0.2],
            '-': [-0.33, 0.33]};
        if (event.key === '0' || event.key === 'Escape') this.group.zoom(null);
        else if (Object.hasOwn(moves, event.key))
            this.group.zoom([from + moves[event.key][0] * width, to + moves[event.key][1] * width]);
        else return;
        event.preventDefault();
    }
}

// Charts shown together: they share zoom and pointer.
class Charts {
    constructor(box, choose) {
        this.box = box;
        this.choose = choose;
        this.charts = new Map();
        this.hover = null;
        this.isBusy = false;
    }

    update() {
        const names = this.choose();
        for (const name of names) if (!this.charts.has(name)) this.charts.set(name, new Chart(name, this));
        const wanted = names.map(name => this.charts.get(name).element);
        if (wanted.length !== this.box.children.length || wanted.some((each, i) => this.box.children[i] !== each))
            this.box.replaceChildren(...wanted);
        this.busily(() => names.forEach(name => this.charts.get(name).update()));
        byId('unzoom').disabled = !page.zoom;
    }

    busily(work) {
        this.isBusy = true;
        try {
            work();
        } finally {
            this.isBusy = false;
        }
    }

    point(x) {
        if (this.isBusy || x === this.hover) return;
        this.hover = x;
        this.busily(() => this.charts.forEach(chart => chart.element.isConnected && chart.read(x)));
    }

    follow(graph) {
        if (this.isBusy) return;
        const seen = graph.isZoomed('x') ? graph.xAxisRange() : null;
        if (String(seen) !== String(page.zoom)) this.zoom(seen);
    }

    zoom(range) {
        page.zoom = range;
        byId('unzoom').disabled = !range;
        this.busily(() => this.charts.forEach(({graph}) => {
            if (graph && !range) graph.resetZoom();
            else if (graph) graph.updateOptions({dateWindow: range});
        }));
    }
}

const mainMetric = run => `metric:${word(statusOf(run).run.metric).replace('log_loss', 'loss')}`;

// Where the best validation of a curve's run is on the chart.
function bestPoint({run, part}) {
    const best = statusOf(run).progress.best, {step, time, values} = run.points, column = values[part] || [];
    if (!best) return null;
    let at = column.length - 1;
    while (at >= 0 && (column[at] === null || step[at] !== best.step)) at--;
    if (at < 0) return page.axis === 'step' ? {x: best.step, value: best.value} : null;
    return {x: page.axis === 'step' ? best.step : page.axis === 'time' ? time[at] * 1000 : time[at] - time[0],
        value: column[at]};
}

const valuesOf = (run, name) => (run.points.values[name] || []).filter(y => y !== null);

// The log loss of most models is their loss under another name.
function isTwin(run, name) {
    const loss = valuesOf(run, 'metric:loss'), other = valuesOf(run, name);
    return name !== 'metric:loss' && loss.length === other.length && loss.length > 0 &&
        other.every((y, i) => Math.abs(y - loss[i]) <= 1e-5 * Math.abs(y));
}

function allSeries() {
    const names = new Set(['loss']);
    for (const run of picked()) for (const name of Object.keys(run.points.values)) names.add(name);
    names.delete('metric:loss'); // is in the chart of the training loss
    const main = mainMetric(page.shown);
    const rank = name => ['loss', main].indexOf(name) + 1 || (isMetric(name) ? 3
        : Object.keys(SERIES).indexOf(name) + 4 || 99);
    const isShown = name => (name === 'loss' && page.runs.length === 1) || picked().some(run =>
        valuesOf(run, name).length || (name === 'loss' && valuesOf(run, 'metric:loss').length));
    const isZero = name => /^bytes_/.test(name) && picked().every(run => valuesOf(run, name).every(y => y === 0));
    return [...names].sort((a, b) => rank(a) - rank(b) || (a < b ? -1 : 1))
        .filter(name => isShown(name) && !isZero(name) &&
            !(isMetric(name) && picked().every(run => !run.points.values[name] || isTwin(run, name))));
}

// The learning rate only if it changes.
function mainSeries() {
    const isConstant = picked().every(run => new Set(valuesOf(run, 'learning_rate')).size < 2);
    const main = ['loss', mainMetric(page.shown), 'steps_per_s', ...(isConstant ? [] : ['learning_rate'])];
    const names = allSeries().filter(name => name !== 'learning_rate' || !isConstant);
    const some = main.filter(name => names.includes(name));
    return [...some, ...names.filter(name => !some.includes(name))].slice(0, 4);
}

const charts = {
    overview: new Charts(byId('overview-charts'), mainSeries),
    charts: new Charts(byId('all-charts'), allSeries),
};

// --- Overview ---

function tile(title, value, note, isLong) {
    return {title, value, note: note || '', isLong};
}

// Pairs of dt and dd, updated in place.
function fillTiles(box, tiles) {
    while (box.children.length > tiles.length) box.lastChild.remove();
    tiles.forEach(({title, value, note, isLong}, i) => {
        const at = box.children[i] || box.appendChild(make('div', {}, make('dt'), make('dd', {class: 'value'}),
            make('dd', {class: 'note'})));
        setText(at.children[0], title);
        setText(at.children[1], value);
        at.children[1].classList.toggle('long', Boolean(isLong));
        setText(at.children[2], note);
    });
}

function fillFacts(box, facts) {
    const wanted = facts.filter(fact => fact && fact[1] !== '' && fact[1] !== NONE);
    while (box.children.length > wanted.length * 2) box.lastChild.remove();
    wanted.forEach(([title, value, kind], i) => {
        const term = box.children[i * 2] || box.appendChild(make('dt'));
        const text = box.children[i * 2 + 1] || box.appendChild(make('dd'));
        setText(term, title);
        setText(text, value);
        text.className = kind || '';
    });
}

const NAMED_WORST = 5;

// From the last validation, the measure that decides first.
function metricsNow() {
    const metric = runOf().metric;
    return Object.entries(progressOf().metrics || {}).sort(([a], [b]) => (b === metric) - (a === metric));
}

function drawTiles() {
    const progress = progressOf(), run = runOf(), best = progress.best;
    const metrics = metricsNow(), [main] = metrics, loss = metrics.find(([name]) => name === 'loss');
    const isOver = isEnded(run), last = page.shown && page.shown.points.time;
    const end = isOver && last && last.length ? last[last.length - 1] : now();
    const [tested] = Object.entries(progress.test || {});
    fillTiles(byId('tiles'), [
        tile('Training loss', number(progress.loss), isOver ? 'at the end' : 'of the last steps'),
        ...(main && main !== loss ? [tile(titled(main[0]), metricText(...main), main[0] === run.metric && best
            ? `best ${metricText(main[0], best.value)} at ${count(best.step)}` : 'last validation')] : []),
        ...(loss ? [tile('Validation loss', number(loss[1]), loss[0] === run.metric && best
            ? `best ${number(best.value)} at ${count(best.step)}` : 'last validation')] : []),
        ...(tested ? [tile(`Test ${titled(tested[0]).toLowerCase()}`, metricText(...tested), 'after training')] : []),
        tile('Steps/s', number(progress.steps_per_s), `${compact(progress.examples_per_s)} examples/s`),
        tile('Learning rate', number(progress.learning_rate), ''),
        tile(isOver ? 'Ended' : 'Time left', isOver ? moment(end) : duration(progress.eta_s),
            isOver ? word(run.state) : isNumber(progress.eta_s) ? `done at ${clock(now() + progress.eta_s)}` : ''),
        tile(isOver ? 'Took' : 'Running for', duration(end - status().started), `since ${moment(status().started)}`),
        tile('Examples', compact(progress.examples), isNumber(progress.epoch) ? `epoch ${number(progress.epoch)}` : ''),
    ]);
}

function drawProgress() {
    const {global_step: step, last_step: last, eta_s: eta} = progressOf();
    const bar = byId('progress-bar');
    setText(byId('progress-step'), `Step ${count(step)}${isNumber(last)
        ? ` of ${count(last)} (${Math.floor(100 * step / Math.max(1, last))}%)` : ''}`);
    const left = isNumber(eta) ? `${duration(eta)} left` : '';
    setText(byId('progress-eta'), isEnded(runOf()) ? word(runOf().state) : left);
    bar.hidden = !isNumber(last);
    if (isNumber(last)) bar.value = Math.min(1, step / Math.max(1, last));
}

const fileOf = path => word(path).split('/').pop();
const SETUP = {optimizer: 'Optimizer', learning_rate: 'Learning rate', batch_size: 'Batch size', epochs: 'Epochs',
    train_steps: 'Steps', seed: 'Seed', layers: 'Layers', target: 'Target'};

function drawSetup() {
    const {settings, data} = aboutOf(page.shown);
    const facts = Object.entries(SETUP).map(([key, title]) => [title, word(settings[key])]);
    byId('setup-panel').hidden = !facts.some(([, value]) => value);
    fillFacts(byId('setup'), [...facts, ['Data', word(data || settings.data_dir)]]);
}

function drawInShort() {
    const states = new Map();
    for (const member of members()) states.set(stateOf(member), (states.get(stateOf(member)) || 0) + 1);
    fillFacts(byId('by-state'), [...states].sort((a, b) => b[1] - a[1])
        .map(([state, many]) => [state, count(many), 'number']));
    const saved = status().checkpoints;
    fillFacts(byId('checkpoint-short'), [
        ['Newest', isNumber(saved.last_step) ? `step ${count(saved.last_step)}, ${ago(saved.last_time)}` : 'none yet'],
        ['Best', isNumber(saved.best_step) ? `step ${count(saved.best_step)}, ${fileOf(saved.best_path)}` : ''],
        ['Written', saved.written ? count(saved.written) : ''],
        saved.failed ? ['Failed', count(saved.failed), 'bad'] : null,
    ]);
    byId('members-panel').hidden = isAlone();
    byId('events-panel').hidden = !events().length && runOf().role === 'dashboard';
    drawSetup();
    const metrics = metricsNow().filter(([name, value], _, all) => name !== 'log_loss' ||
        !all.some(([other, loss]) => other === 'loss' && Math.abs(loss - value) <= 1e-5 * Math.abs(loss)));
    const worst = worstTenth();
    byId('metrics-panel').hidden = metrics.length < 2 && !worst.length;
    fillFacts(byId('metrics'), [
        ...metrics.map(([name, value]) => [titled(name), metricText(name, value), 'number']),
        worst.length ? ['Worst tenth', worst.slice(0, NAMED_WORST).map(member =>
            `${nameOf(member)} ${metricText(word(runOf().metric), member.validation.score)} of ` +
            `${count(member.validation.examples)}`).join(', ') + (worst.length > NAMED_WORST
            ? ` and ${count(worst.length - NAMED_WORST)} more` : '')] : null,
    ]);
    drawEvents(byId('events-short'), events().slice(-8), true);
}

// The settings in which runs differ, the best known first.
function differing(runs) {
    const settings = runs.map(run => aboutOf(run).settings), known = Object.keys(SETUP);
    const keys = [...new Set([...known, ...settings.flatMap(Object.keys)])];
    return keys.filter(key => new Set(settings.map(each => word(each[key]))).size > 1);
}

function drawCompare() {
    const several = page.runs.length > 1, table = byId('compare-table');
    byId('compare').hidden = !several;
    if (!several) return;
    const sight = JSON.stringify([page.shown.id, page.runs.map(run => [run.id, run.name, run.status, run.about])]);
    if (sight === table.sight) return;
    table.sight = sight;
    const differences = differing(page.runs).slice(0, 8);
    const scores = page.runs.map(run => statusOf(run).progress.best?.value).filter(isNumber);
    const top = runOf().metric_goal === 'min' ? Math.min(...scores) : Math.max(...scores);
    const head = ['Run', 'State', ...differences.map(key => SETUP[key] || titled(key)), 'Step', 'Loss',
        'Validation loss', 'Best', 'Test', 'Steps/s'];
    table.tHead.replaceChildren(make('tr', {}, ...head.map((title, i) =>
        make('th', {scope: 'col', class: i > 1 + differences.length ? 'number' : null}, title))));
    table.tBodies[0].replaceChildren(...page.runs.map(run => {
        const {run: about, progress} = statusOf(run), best = progress.best, isTop = best && best.value === top;
        const [tested] = Object.entries(progress.test || {}), settings = aboutOf(run).settings;
        const swatch = make('span', {class: 'swatch'});
        swatch.style.color = `var(--${run.color})`;
        const cells = [count(progress.global_step), number(progress.loss), number((progress.metrics || {}).loss),
            best ? `${metricText(word(about.metric), best.value)} at ${count(best.step)}` : NONE,
            tested ? metricText(...tested) : NONE, number(progress.steps_per_s)];
        const button = make('button', {type: 'button', class: 'text'}, swatch, run.name);
        button.addEventListener('click', () => show(run));
        return make('tr', {'aria-current': run === page.shown && 'true'}, make('th', {scope: 'row'}, button),
            make('td', {}, word(about.state)), ...differences.map(key => make('td', {}, word(settings[key]) || NONE)),
            ...cells.map((text, i) => make('td', {class: i === 3 && isTop ? 'number good' : 'number'}, text)));
    }));
}

// --- Members ---

// "missing" is added to a state that does not imply it.
const stateOf = member => (!member.missing || ['lost', 'absent'].includes(member.state) ? word(member.state)
    : `${word(member.state)}, missing`.replace(/^, /, ''));
const nameOf = member => (member.role === 'local' ? 'local' : `${word(member.role)} ${word(member.task)}`);
const roleRank = {local: 0, ps: 1, worker: 2, evaluator: 3};

const digits = (key, title, show = count) => ({key, title, isNumber: true, text: member => show(member[key])});
const ofRounds = (key, title, show = count) => ({key: `rounds_${key}`, title, isNumber: true,
    text: member => (member.rounds ? show(member.rounds[key], member.rounds) : NONE),
    order: member => member.rounds?.[key]});
const words = (key, title, show = word) => ({key, title, text: member => show(member[key])});

// How the model does on a worker's own rows; a star marks the worst tenth of those that tried that model.
const ownScore = ({validation: own}) => (own ? metricText(word(runOf().metric), own.score) + (own.is_worst ? ' *' : '')
    : NONE);

// The workers on whose own rows the last validated model does worst, the worst first.
function worstTenth() {
    const validated = members().filter(member => member.validation);
    const last = Math.max(...validated.map(member => member.validation.step));
    const sign = runOf().metric_goal === 'min' ? -1 : 1;
    return validated.filter(({validation: own}) => own.step === last && own.is_worst)
        .sort((a, b) => sign * (a.validation.score - b.validation.score));
}

const COLUMNS = [
    {key: 'name', title: 'Member', text: nameOf, order: m => (roleRank[m.role] ?? 9) * 1e9 + (Number(m.task) || 0)},
    {key: 'state', title: 'State', text: stateOf, order: stateOf},
    words('host', 'Host'),
    digits('global_step', 'Step'),
    digits('steps_per_s', 'Steps/s', value => fixed(value, 1)),
    digits('loss', 'Loss', value => fixed(value, 4)),
    digits('silent_ms', 'Heard', ms => (isNumber(ms) ? since(ms / 1000) : NONE)),
    digits('staleness', 'Stale'),
    digits('dropped', 'Dropped'),
    ofRounds('asked', 'Asked', (value, rounds) => count(value) + (rounds.is_asked ? ' *' : '')),
    ofRounds('late', 'Late'),
    ofRounds('missed', 'Missed'),
    ofRounds('cosine', 'Cosine', value => fixed(value, 3)),
    {key: 'own_score', title: 'Own score', isNumber: true, text: ownScore, order: member => member.validation?.score},
    {key: 'own_rows', title: 'Own rows', isNumber: true, text: member => count(member.validation?.examples),
        order: member => member.validation?.examples},
    digits('retries', 'Retries'),
    digits('memory_bytes', 'Memory', bytes),
    digits('cpu_percent', 'CPU', percent),
    digits('gpu_percent', 'GPU', percent),
    digits('bytes_in', 'In', bytes),
    digits('bytes_out', 'Out', bytes),
    digits('local_step', 'Own steps'),
    digits('generation', 'Gen.'),
    words('address', 'Address'),
    words('link', 'Link'),
    words('device', 'Device'),
    words('program', 'Program'),
    digits('config_version', 'Config'),
    words('config_digest', 'Digest', digest => word(digest).slice(0, 12)),
    words('message', 'Message'),
].map(column => ({order: member => member[column.key], ...column}));
const LONG = ['message', 'device', 'program', 'host', 'address'];

const table = {columns: [], rows: [], shown: [], widths: new Map(), keys: '', sight: '', measured: 0};

const isEmpty = value => isNothing(value) || value === '';

function compare(column, down) {
    const sign = down ? -1 : 1;
    return (a, b) => {
        const x = column.order(a), y = column.order(b);
        if (isEmpty(x) || isEmpty(y)) return isEmpty(x) - isEmpty(y);
        return (typeof x === 'number' && typeof y === 'number' ? x - y : word(x).localeCompare(word(y))) * sign ||
            COLUMNS[0].order(a) - COLUMNS[0].order(b);
    };
}

const MISSING = 'missing';

function wantedMembers() {
    const terms = byId('member-search').value.toLowerCase().split(/\s+/).filter(Boolean);
    const state = byId('member-state').value;
    const found = members().filter(member => {
        if (state === MISSING ? !member.missing : state && stateOf(member) !== state) return false;
        if (!terms.length) return true;
        const text = [nameOf(member), stateOf(member), member.host, member.address, member.device, member.program,
            member.config_digest, member.message].map(word).join('\n').toLowerCase();
        return terms.every(term => text.includes(term));
    });
    const column = COLUMNS.find(each => each.key === page.sort.key);
    return found.sort(compare(column, page.sort.down));
}

// The header, rebuilt when columns come or go: an empty column is left out.
function drawHead() {
    const all = members();
    const columns = COLUMNS.filter((column, i) => i < 2 || all.some(member => !isEmpty(column.order(member))));
    const keys = columns.map(column => column.key).join();
    if (keys !== table.keys) {
        table.keys = keys;
        table.columns = columns;
        table.shown = [];
        byId('member-rows').replaceChildren();
        byId('member-head').replaceChildren(...columns.map(column => {
            const button = make('button', {type: 'button', class: column.isNumber ? 'number' : null}, column.title);
            button.addEventListener('click', () => sortBy(column.key));
            return make('th', {scope: 'col', class: column.isNumber ? 'number' : null, 'data-key': column.key}, button);
        }));
    }
    for (const cell of byId('member-head').children) {
        if (cell.dataset.key !== page.sort.key) cell.removeAttribute('aria-sort');
        else cell.setAttribute('aria-sort', page.sort.down ? 'descending' : 'ascending');
    }
}

function sortBy(key) {
    const column = COLUMNS.find(each => each.key === key);
    page.sort = {key, down: page.sort.key === key ? !page.sort.down : Boolean(column.isNumber)};
    drawMembers();
}

// Wide enough for the longest text, and never narrower again: columns that change width are hard to read.
function widthOf(column) {
    const texts = members().map(column.text);
    const longest = texts.reduce((most, text) => (text.length > most.length ? text : most), column.title);
    const known = table.widths.get(column.key);
    if (known && longest.length <= known.length) return known.width;
    setText(probe, longest);
    const cell = probe.offsetWidth * 1.05;
    setText(probe, column.title);
    const width = Math.ceil(Math.max(Math.min(cell, 320) + 22, probe.offsetWidth + 38, known ? known.width : 0));
    table.widths.set(column.key, {length: longest.length, width});
    return width;
}

function drawWidths() {
    const age = Date.now() - table.measured, sight = `${table.keys}|${members().length}`;
    if (sight === table.sight && age < 5000) return;
    table.sight = sight;
    table.measured = Date.now();
    const head = byId('member-head').children, widths = table.columns.map(widthOf);
    widths.forEach((width, i) => {
        if (head[i].style.width !== `${width}px`) head[i].style.width = `${width}px`;
    });
    byId('member-table').style.width = `max(100%, ${widths.reduce((sum, width) => sum + width, 0)}px)`;
}

function drawStates() {
    const select = byId('member-state'), states = [...new Set([...members().map(stateOf),
        ...(members().some(member => member.missing) ? [MISSING] : [])])].sort();
    const there = [...select.options].slice(1).map(option => option.value);
    if (states.join('\n') === there.join('\n')) return;
    const chosen = select.value;
    select.replaceChildren(select.options[0], ...states.map(state => make('option', {value: state}, state)));
    select.value = states.includes(chosen) ? chosen : '';
}

function newRow() {
    const cells = table.columns.map((column, i) => {
        if (i) return make('td', {class: column.isNumber ? 'number' : null});
        const button = make('button', {type: 'button'});
        return make('th', {scope: 'row'}, button);
    });
    const row = make('tr', {}, ...cells);
    row.firstChild.firstChild.addEventListener('click', () => openMember(row.member));
    return row;
}

function fillRow(row, member, index) {
    row.member = member;
    row.setAttribute('aria-rowindex', index + 2);
    table.columns.forEach((column, i) => {
        const cell = row.children[i], text = column.text(member);
        setText(i ? cell : cell.firstChild, text);
        if (column.key === 'state') cell.className = member.missing ? 'lost' : word(member.state).replace(/\W/g, '-');
        if (LONG.includes(column.key) && cell.title !== text) cell.title = text;
    });
}

// Only visible rows exist; gaps above and below keep the scroll bar correct.
function drawRows() {
    const body = byId('member-rows'), region = byId('member-region');
    if (!body.firstChild) {
        const colspan = table.columns.length;
        const gap = () => make('tr', {class: 'gap', 'aria-hidden': 'true'}, make('td', {colspan}));
        body.append(gap(), gap());
    }
    const height = table.shown.length ? body.children[1].offsetHeight || 28 : 28;
    const first = Math.max(0, Math.floor(region.scrollTop / height) - 8);
    const last = Math.min(table.rows.length, Math.ceil((region.scrollTop + region.clientHeight) / height) + 8);
    const end = Math.max(last, Math.min(table.rows.length, first + 30));
    while (table.shown.length < end - first) {
        const row = newRow();
        body.lastChild.before(row);
        table.shown.push(row);
    }
    while (table.shown.length > end - first) table.shown.pop().remove();
    table.shown.forEach((row, i) => fillRow(row, table.rows[first + i], first + i));
    body.firstChild.firstChild.style.height = `${first * height}px`;
    body.lastChild.firstChild.style.height = `${(table.rows.length - end) * height}px`;
    byId('member-table').setAttribute('aria-rowcount', table.rows.length + 1);
}

function drawMembers() {
    drawHead();
    drawStates();
    drawWidths();
    table.rows = wantedMembers();
    drawRows();
    const all = members().length;
    setText(byId('member-count'), table.rows.length === all ? plural(all, 'member')
        : `${count(table.rows.length)} of ${plural(all, 'member')}`);
    drawDistribution();
}

// How the sorted column's values are distributed over the members shown, from some twenty on.
function drawDistribution() {
    const sorted = COLUMNS.find(each => each.key === page.sort.key), box = byId('distribution');
    const column = sorted.isNumber ? sorted : COLUMNS.find(each => each.key === 'steps_per_s');
    const found = table.rows.filter(member => isNumber(column.order(member)))
        .sort((a, b) => column.order(a) - column.order(b));
    byId('distribution-panel').hidden = found.length < 20;
    if (found.length < 20) return;
    const values = found.map(column.order), low = values[0], high = values[values.length - 1], bins = 40;
    const counts = new Array(bins).fill(0), of = share => found[Math.round(share * (found.length - 1))];
    for (const value of values) counts[Math.min(bins - 1, Math.floor((value - low) / (high - low || 1) * bins))]++;
    const most = Math.max(...counts), height = 44;
    setText(byId('distribution-title'), `${column.title} of ${plural(found.length, 'member')}`);
    const at = [[0, 'lowest'], [0.1, '10%'], [0.5, 'median'], [0.9, '90%'], [1, 'highest']];
    fillFacts(byId('distribution-facts'), at.map(([share, title]) => [title, column.text(of(share)), 'number']));
    box.replaceChildren(svg('svg', {height, viewBox: `0 0 ${bins} ${height}`, preserveAspectRatio: 'none', role: 'img',
        'aria-label': `Distribution from ${column.text(of(0))} to ${column.text(of(1))}`}, ...counts.map((many, i) =>
        svg('rect', {x: i + 0.05, width: 0.9, y: height * (1 - many / most), height: height * many / most},
            svg('title', {}, plural(many, 'member'))))));
}

function openMember(member) {
    page.member = nameOf(member);
    drawMember();
    byId('member-dialog').showModal();
}

function drawMember() {
    const member = members().find(each => nameOf(each) === page.member);
    if (!member) return;
    setText(byId('member-title'), nameOf(member));
    fillFacts(byId('member-facts'), COLUMNS.slice(1).map(column =>
        [column.title, column.key === 'config_digest' ? word(member.config_digest) : column.text(member)]));
    const series = page.shown.series.get(page.member), box = byId('member-curves');
    const drawn = series ? CURVES.filter(([key]) => series[key].filter(isNumber).length > 1) : [];
    box.hidden = !drawn.length;
    box.replaceChildren(...drawn.map(([key, title, show]) => sparkline(title, series.time, series[key], show)));
}

const CURVES = [['steps_per_s', 'Steps per second', number], ['loss', 'Loss', number]];
const MEMBER_POINTS = 600;

// What the members report from now on: the page keeps their last minutes while it is open.
function recordMembers(run) {
    for (const member of list(run.status.members)) {
        const name = nameOf(member);
        const series = run.series.get(name) || {time: [], steps_per_s: [], loss: []};
        run.series.set(name, series);
        series.time.push(run.status.time);
        for (const [key] of CURVES) series[key].push(member[key]);
        if (series.time.length > MEMBER_POINTS) for (const column of Object.values(series)) column.shift();
    }
}

function sparkline(title, times, values, show) {
    const known = values.filter(isNumber), low = Math.min(...known), high = Math.max(...known);
    const width = 500, height = 60, from = times[0], span = times[times.length - 1] - from || 1;
    const points = values.map((value, i) => isNumber(value) && `${((times[i] - from) / span * width).toFixed(1)},` +
        (height - 2 - (high > low ? (value - low) / (high - low) : 0.5) * (height - 4)).toFixed(1))
        .filter(Boolean).join(' ');
    return make('figure', {class: 'spark'}, make('figcaption', {}, make('b', {}, title),
        ` ${show(low)} to ${show(high)}, in the last ${duration(span)}`),
    svg('svg', {viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: 'none', 'aria-hidden': 'true'},
        svg('polyline', {points})));
}

// --- Events ---

const events = () => (page.shown ? page.shown.events : []);
const CONFIG_KINDS = ['rollout'];
const SAVE_KINDS = ['checkpoint', 'restored'];

function eventItem(event, isShort) {
    const time = make('time', {datetime: iso(event.time), title: iso(event.time)},
        isShort ? clock(event.time) : moment(event.time));
    const kind = make('span', {class: 'kind'}, word(event.kind));
    const text = make('span', {class: 'text'}, event.member && !word(event.text).includes(event.member)
        ? `${event.member}: ` : '', word(event.text));
    if (isShort) return make('li', {'data-kind': word(event.kind)}, time, kind, text);
    return make('li', {'data-kind': word(event.kind), 'data-id': word(event.id)}, time, kind,
        make('span', {class: 'step'}, isNumber(event.step) ? `step ${count(event.step)}` : ''), text);
}

// Newest first; existing entries stay, so reading and selecting are not disturbed.
function drawEvents(box, wanted, isShort) {
    const ids = wanted.map(event => `${event.id}@${event.time}`), there = box.ids || [];
    if (!wanted.length) {
        if (!box.firstChild || there.length) box.replaceChildren(make('li', {class: 'none'}, 'none yet'));
        box.ids = [];
        return;
    }
    const common = there.length ? ids.lastIndexOf(there[there.length - 1]) : -1;
    const drop = common < 0 ? -1 : there.indexOf(ids[0]);
    if (common < 0 || drop < 0 || there.slice(drop).join() !== ids.slice(0, common + 1).join()) {
        box.replaceChildren(...wanted.map(event => eventItem(event, isShort)).reverse());
    } else {
        for (let i = 0; i < drop; i++) box.lastChild.remove();
        for (const event of wanted.slice(common + 1)) box.prepend(eventItem(event, isShort));
    }
    box.ids = ids;
    box.classList.toggle('dated', !isShort && moment(wanted[0].time).length > 8);
}

function drawEventView() {
    const terms = byId('event-search').value.toLowerCase().split(/\s+/).filter(Boolean);
    const select = byId('event-kind'), kinds = [...new Set(events().map(event => word(event.kind)))].sort();
    if (kinds.join('\n') !== [...select.options].slice(1).map(option => option.value).join('\n')) {
        const chosen = select.value;
        select.replaceChildren(select.options[0], ...kinds.map(kind => make('option', {value: kind}, kind)));
        select.value = kinds.includes(chosen) ? chosen : '';
    }
    const wanted = events().filter(event => (!select.value || event.kind === select.value) && terms.every(term =>
        `${event.kind}\n${word(event.member)}\n${word(event.text)}\n${word(event.step)}`.toLowerCase().includes(term)));
    drawEvents(byId('event-list'), wanted);
    setText(byId('event-count'), wanted.length === events().length ? plural(wanted.length, 'event')
        : `${count(wanted.length)} of ${plural(events().length, 'event')}`);
    drawLanes(kinds);
}

const svg = (tag, attributes, ...children) => {
    const node = document.createElementNS('http://www.w3.org/2000/svg', tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    node.append(...children);
    return node;
};

// A lane for each kind, a tick for each event: the whole run at a glance. The list below has the same events as text.
function drawLanes(kinds) {
    const box = byId('lanes'), all = events(), width = box.clientWidth;
    const sight = `${width}|${all.length}|${all.length && all[all.length - 1].id}|${kinds}`;
    byId('lanes-panel').hidden = all.length < 2;
    if (all.length < 2 || sight === box.sight) return;
    box.sight = sight;
    const left = 78, lane = 18, from = all[0].time, to = Math.max(all[all.length - 1].time, from + 1);
    const x = time => left + (width - left - 6) * (time - from) / (to - from);
    const picture = svg('svg', {height: kinds.length * lane + 20, 'aria-hidden': 'true', focusable: 'false'});
    kinds.forEach((kind, i) => {
        const y = i * lane + 9;
        picture.append(svg('text', {x: 0, y: y + 4}, kind), svg('line', {x1: left, x2: width, y1: y, y2: y}));
        for (const event of all.filter(each => word(each.kind) === kind)) {
            const at = x(event.time).toFixed(1), place = {x1: at, x2: at, y1: y - 6, y2: y + 6};
            picture.append(svg('line', {class: 'tick', 'data-kind': kind, 'data-id': event.id, ...place},
                svg('title', {}, `${clock(event.time)} ${word(event.text)}`)));
        }
    });
    const ends = [[left, from, 'start'], [width - 6, to, 'end']];
    for (const [at, time, anchor] of ends)
        picture.append(svg('text', {x: at, y: kinds.length * lane + 16, 'text-anchor': anchor}, moment(time)));
    box.replaceChildren(picture);
}

function findEvent(id) {
    const item = [...byId('event-list').children].find(each => each.dataset.id === id);
    document.querySelectorAll('.found').forEach(each => each.classList.remove('found'));
    if (!item) return;
    item.classList.add('found');
    item.scrollIntoView({block: 'center'});
}

// --- Config ---

// The settings of the run, or of all runs side by side; what differs is marked.
function drawSettings() {
    const runs = page.runs, table = byId('settings'), {command} = aboutOf(page.shown);
    const keys = [...new Set([...Object.keys(SETUP), ...runs.flatMap(run => Object.keys(aboutOf(run).settings))])]
        .filter(key => runs.some(run => word(aboutOf(run).settings[key])));
    const sight = JSON.stringify([runs.map(run => run.about), page.shown.id]);
    if (sight === table.sight) return;
    table.sight = sight;
    const differences = differing(runs);
    byId('command-panel').hidden = !command;
    setText(byId('command'), word(command));
    byId('settings-panel').hidden = !keys.length;
    table.tHead.hidden = runs.length < 2;
    table.tHead.replaceChildren(make('tr', {}, ...['Key', ...runs.map(run => run.name)].map(title =>
        make('th', {scope: 'col'}, title))));
    table.tBodies[0].replaceChildren(...keys.map(key => make('tr',
        {class: differences.includes(key) ? 'differs' : null}, make('th', {scope: 'row', class: 'mono'}, key),
        ...runs.map(run => make('td', {}, word(aboutOf(run).settings[key]) || NONE)))));
}

function drawConfig() {
    drawSettings();
    byId('fleet-config').hidden = isAlone();
    const rollout = status().rollout, box = byId('rollout'), drift = list(status().drift);
    const sight = JSON.stringify([rollout, drift, runOf().config_version]);
    if (sight !== box.sight) {
        box.sight = sight;
        box.replaceChildren(...(rollout ? rolloutParts(rollout) : [make('p', {class: 'quiet'},
            'No rollout in progress.' +
                (isNumber(runOf().config_version) ? ` Version ${count(runOf().config_version)} is in force.` : ''))]));
        byId('drift').replaceChildren(drift.length ? make('ul', {class: 'drifting'}, ...drift.map(text =>
            make('li', {}, word(text)))) : make('p', {class: 'quiet'}, 'None: all members run the same config.'));
    }
    drawGroups();
    drawEvents(byId('config-events'), events().filter(event => CONFIG_KINDS.includes(event.kind)));
}

function rolloutParts(rollout) {
    const since = make('span', {class: 'quiet'}, `since ${moment(rollout.since)}`);
    const rows = list(rollout.diff).map(line => {
        const parts = /^(.+?): (.*) -> (.*)$/s.exec(word(line));
        if (!parts) return make('tr', {}, make('th', {scope: 'row', colspan: 3}, word(line)));
        return make('tr', {}, make('th', {scope: 'row'}, parts[1]),
            make('td', {class: 'old'}, make('del', {}, parts[2])),
            make('td', {class: 'new'}, make('ins', {}, parts[3])));
    });
    return [
        make('div', {class: 'phase'}, make('b', {}, `Version ${count(rollout.version)}`),
            make('span', {class: 'state', 'data-state': 'starting'}, word(rollout.phase)), since),
        make('p', {}, word(rollout.text)),
        ...(rows.length ? [make('table', {class: 'diff'}, make('thead', {}, make('tr', {}, ...['Key', 'From', 'To'].map(
            title => make('th', {scope: 'col'}, title)))), make('tbody', {}, ...rows))] : []),
    ];
}

function drawGroups() {
    const groups = new Map();
    for (const member of members()) {
        const key = JSON.stringify([word(member.program), member.config_version, word(member.config_digest)]);
        if (!groups.has(key)) groups.set(key, []);
        groups.get(key).push(nameOf(member));
    }
    const rows = [...groups].sort((a, b) => b[1].length - a[1].length), body = byId('groups').tBodies[0];
    const sight = JSON.stringify(rows);
    if (sight === body.sight) return;
    body.sight = sight;
    body.replaceChildren(...rows.map(([key, names]) => {
        const [program, version, digest] = JSON.parse(key);
        const some = names.slice(0, 12).join(', ') + (names.length > 12 ? ` and ${count(names.length - 12)} more` : '');
        return make('tr', {}, make('td', {}, program || NONE), make('td', {class: 'number'}, count(version)),
            make('td', {class: 'mono'}, digest.slice(0, 16) || NONE),
            make('td', {class: 'number'}, count(names.length)), make('td', {}, some));
    }));
}

// --- Checkpoints ---

function drawCheckpoints() {
    const saved = status().checkpoints;
    fillTiles(byId('checkpoint-tiles'), [
        tile('Newest', isNumber(saved.last_step) ? `step ${count(saved.last_step)}` : 'none yet', ago(saved.last_time)),
        tile('Best', isNumber(saved.best_step) ? `step ${count(saved.best_step)}` : 'none yet',
            fileOf(saved.best_path)),
        tile('Writing took', duration(saved.duration_s), ''),
        tile('Written', count(saved.written), runOf().role === 'dashboard' ? 'still there' : 'since the start'),
        tile('Failed', count(saved.failed), ''),
        tile('Newest file', word(saved.last_path) || NONE, '', true),
    ]);
    drawEvents(byId('checkpoint-events'), events().filter(event => SAVE_KINDS.includes(event.kind)));
}

// --- Model ---

const extras = {asked: 0, run: null};

async function loadExtras() {
    const run = page.shown, known = list(runOf().extras);
    if (!run || !run.status || (extras.run === run && Date.now() - extras.asked < 10000)) return;
    extras.run = run;
    extras.asked = Date.now();
    const get = name => (known.includes(name) ? ask(name, run).catch(() => null) : null);
    const [weights, mistakes, columns, classes] =
        await Promise.all(['weights', 'mistakes', 'columns', 'classes'].map(get));
    if (run !== page.shown) return;
    drawClasses(classes);
    drawWeights(weights);
    drawMistakes(mistakes);
    drawColumns(columns);
}

function drawModel() {
    const run = runOf(), best = progressOf().best;
    fillFacts(byId('run-facts'), [
        ['Layers', list(run.layers).join(' – ')],
        ['Engine', word(run.engine)],
        ['Judged by', run.metric ? `${run.metric}, ${run.metric_goal === 'min' ? 'lower' : 'higher'} is better` : ''],
        ['Best', best ? `${metricText(word(run.metric), best.value)} at step ${count(best.step)}` : ''],
        ['Folder', word(run.train_dir)],
        ['Role', roleText(run) || word(run.role)],
        ['Program', word(status().version)],
        ['Build', word(status().build)],
        ['Config', isNumber(run.config_version) ? `version ${count(run.config_version)}` : ''],
        ['Digest', word(run.config_digest), 'mono'],
        ['Generation', count(run.generation)],
        ['Started', moment(status().started)],
    ]);
    loadExtras();
}

const channels = text => list(text.match(/[\d.]+/g)).slice(0, 3).map(Number);
const mixed = (a, b, share) => a.map((value, i) => value + (b[i] - value) * share);

// Draws pixels, given a function from an index to [red, green, blue].
function picture(height, width, colorOf, label) {
    const canvas = make('canvas', {width, height, role: 'img', 'aria-label': label});
    const context = canvas.getContext('2d'), image = context.createImageData(width, height);
    for (let i = 0; i < width * height; i++) image.data.set([...colorOf(i), 255], i * 4);
    context.putImageData(image, 0, 0);
    return canvas;
}

const isPicture = each => each && each.height > 0 && each.width > 0 && each.height * each.width <= 1 << 20;

function drawWeights(answer) {
    const units = isPicture(answer) ? list(answer.units).slice(0, 64) : [];
    byId('weights-panel').hidden = !units.length;
    if (!units.length) return;
    const sizes = units.flatMap(unit => list(unit.values)).filter(isNumber).map(Math.abs).sort((a, b) => a - b);
    const most = sizes[Math.floor(sizes.length * 0.998)] || 1;
    const zero = channels(color('panel')), hot = channels(color('hot')), cold = channels(color('cold'));
    byId('weights-note').replaceChildren(`The first ${count(units.length)} units, what each looks for. `,
        number(-most), make('span', {class: 'scale', 'aria-hidden': 'true'}), number(most));
    byId('weights').replaceChildren(...units.map((unit, i) => {
        const colorOf = at => {
            const value = isNumber(unit.values[at]) ? unit.values[at] / most : 0;
            return mixed(zero, value < 0 ? cold : hot, Math.min(1, Math.abs(value)));
        };
        return make('li', {}, picture(answer.height, answer.width, colorOf, `Weights of unit ${i}`));
    }));
}

function drawMistakes(answer) {
    const mistakes = isPicture(answer) ? list(answer.mistakes).slice(0, 24) : [];
    byId('mistakes-panel').hidden = !mistakes.length;
    byId('mistakes').replaceChildren(...mistakes.map(each => {
        let pixels = '';
        try {
            pixels = atob(word(each.pixels));
        } catch { /* not base64: an empty picture says so too */ }
        const size = answer.height * answer.width, isColored = pixels.length >= 3 * size;
        const kind = /^\d$/.test(word(each.label)) ? 'digit ' : '';
        const label = `${kind}${word(each.label)}, taken for ${word(each.predicted)}`;
        const colorOf = at => [0, 1, 2].map(channel => pixels.charCodeAt(isColored ? 3 * at + channel : at) || 0);
        const name = `A picture of ${word(each.label)} taken for ${word(each.predicted)}`;
        return make('li', {}, make('figure', {}, picture(answer.height, answer.width, colorOf, name),
            make('figcaption', {}, label, isNumber(each.confidence) ? ` (${percent(each.confidence * 100)})` : '')));
    }));
}

function drawColumns(answer) {
    const columns = list(answer && answer.columns).filter(each => isNumber(each.importance)).slice(0, 400);
    byId('columns-panel').hidden = !columns.length;
    columns.sort((a, b) => b.importance - a.importance);
    const most = columns.reduce((size, each) => Math.max(size, Math.abs(each.importance)), 1e-12);
    byId('columns').tBodies[0].replaceChildren(...columns.map(each => {
        const bar = make('div', {class: each.importance < 0 ? 'meter minus' : 'meter'});
        bar.style.width = `${100 * Math.abs(each.importance) / most}%`;
        return make('tr', {}, make('th', {scope: 'row'}, word(each.name)),
            make('td', {class: 'number'}, `${(each.importance * 100).toFixed(1)}%`),
            make('td', {'aria-hidden': 'true'}, bar));
    }));
}

const MATRIX_MOST = 24; // with more classes only their accuracy is shown

function drawClasses(answer) {
    const classes = list(answer && answer.classes);
    const mistakes = classes.flatMap((each, row) => each.predicted.filter((_, i) => i !== row));
    const most = mistakes.reduce((size, many) => Math.max(size, many), 1);
    byId('classes-panel').hidden = !classes.length;
    if (!classes.length) return;
    const isMatrix = classes.length <= MATRIX_MOST;
    setText(byId('classes-note'), `Of the validation at step ${count(answer.step)}` + (isMatrix
        ? ': a row for each class, a column for what the model took it for.' : ', the worst class first.'));
    const head = ['Class', 'Accuracy', 'Examples', ...(isMatrix ? classes.map(each => each.name) : [])];
    byId('classes').tHead.replaceChildren(make('tr', {}, ...head.map((title, i) =>
        make('th', {scope: 'col', class: i ? 'number' : null}, word(title)))));
    const share = each => (each.examples ? each.correct / each.examples : NaN);
    const sorted = isMatrix ? classes : [...classes].sort((a, b) => share(a) - share(b));
    byId('classes').tBodies[0].replaceChildren(...sorted.map((each, row) => make('tr', {},
        make('th', {scope: 'row'}, word(each.name)),
        make('td', {class: 'number'}, each.examples ? metricText('accuracy', share(each)) : NONE),
        make('td', {class: 'number'}, count(each.examples)),
        ...(isMatrix ? each.predicted.map((many, i) => {
            const cell = make('td', {class: `number ${i === row ? 'right' : many ? 'wrong' : 'quiet'}`}, count(many));
            const weight = i === row ? 30 : 15 + 40 * many / most;
            if (many) cell.style.setProperty('--share', `${Math.round(weight)}%`);
            return cell;
        }) : []))));
}

// --- The frame around the views ---

const roleText = run => (['ps', 'worker', 'evaluator'].includes(run.role) ? `${run.role} ${word(run.task)}` : '');

// Each with what to look at when it is pressed.
function noticesNow() {
    const run = runOf(), rollout = status().rollout, missing = members().filter(member => member.missing);
    const drift = list(status().drift), saved = status().checkpoints, found = [], {last_step: last} = progressOf();
    const open = view => () => { location.hash = view; };
    const filter = (text, state) => () => filterMembers(text, state);
    if (page.link === 'lost')
        found.push(['bad', 'No answer', `since ${clock(page.answered)}: the data shown are old. Reconnecting.`]);
    if (run.state === 'failed') {
        const error = events().filter(event => event.kind === 'error').pop();
        found.push(['bad', 'Failed', error ? word(error.text) : 'its log says why', events().length && open('events')]);
    }
    if (run.state === 'interrupted')
        found.push(['warn', 'Interrupted', `at step ${count(progressOf().global_step)}${isNumber(last)
            ? ` of ${count(last)}` : ''}. The same command continues from the newest checkpoint.`]);
    if (run.waiting_for) {
        const [name] = word(run.waiting_for).match(/^(ps|worker) \d+/) || [];
        found.push(['warn', 'Waiting', `for ${run.waiting_for}`, name && filter(name, '')]);
    }
    if (missing.length) found.push(['warn', `${count(missing.length)} of ${plural(members().length, 'member')} missing`,
        missing.slice(0, 8).map(nameOf).join(', ') + (missing.length > 8 ? ' and more' : ''), filter('', MISSING)]);
    if (rollout) found.push(['', `Rollout of version ${count(rollout.version)}`,
        word(rollout.text) || word(rollout.phase), open('config')]);
    if (drift.length)
        found.push(['warn', 'Drift', [drift[0], drift.length > 1 ? `and ${count(drift.length - 1)} more` : '']
            .filter(Boolean).join(', '), open('config')]);
    if (saved.failed) found.push(['bad', 'Checkpoints', `${count(saved.failed)} could not be written`, open('events')]);
    return found;
}

function filterMembers(text, state) {
    location.hash = 'members';
    drawStates();
    byId('member-search').value = text;
    byId('member-state').value = state;
    byId('member-region').scrollTop = 0;
    draw();
}

let announced = '';

function drawNotices() {
    const box = byId('notices'), found = noticesNow();
    while (box.children.length > found.length) box.lastChild.remove();
    found.forEach(([kind, title, text, open], i) => {
        const at = box.children[i] || box.appendChild(make('p', {}, make('b'), make('button', {type: 'button',
            class: 'text'}), make('span')));
        at.className = `notice ${kind}`;
        at.children[0].hidden = Boolean(open);
        at.children[1].hidden = !open;
        setText(at.children[0], open ? '' : title);
        setText(at.children[1], open ? title : '');
        at.children[1].onclick = open || null;
        setText(at.children[2], text);
    });
    // Announced by screen readers when it changes, without the part that counts up each second.
    const text = [word(runOf().state), ...found.map(([, title]) => title)].filter(Boolean).join('. ');
    if (text !== announced) setText(byId('spoken'), announced = text);
}

function drawFrame() {
    const run = runOf(), name = page.shown ? page.shown.name : 'trainer';
    setText(byId('name'), name);
    const chip = byId('state');
    setText(chip, word(run.state) || 'connecting');
    chip.dataset.state = word(run.state);
    setText(byId('role'), roleText(run));
    byId('nav-members').hidden = isAlone();
    const link = byId('link');
    setText(link, page.linkText);
    link.dataset.link = page.link;
    document.body.classList.toggle('stale', page.link === 'lost');
    const missing = members().filter(member => member.missing).length, badge = byId('count-members');
    setText(badge, missing ? `${count(missing)} missing` : members().length > 1 ? count(members().length) : '');
    badge.className = missing ? 'count warn' : 'count';
    const drift = list(status().drift).length, config = byId('count-config');
    setText(config, status().rollout ? 'rollout' : drift ? 'drift' : '');
    config.className = 'count warn';
    const {global_step: step, last_step: last} = progressOf();
    const isPart = isNumber(last) && run.state !== 'done' && step < last;
    const share = isPart ? `${Math.floor(100 * step / Math.max(1, last))}% ` : '';
    document.title = page.shown ? `${share}${name} – ${word(run.state)}` : 'trainer';
}

const VIEWS = {
    overview() {
        drawProgress();
        drawTiles();
        drawCompare();
        charts.overview.update();
        drawInShort();
    },
    charts() {
        drawPicks();
        charts.charts.update();
    },
    members: drawMembers,
    events: drawEventView,
    config: drawConfig,
    checkpoints: drawCheckpoints,
    model: drawModel,
};

let isDue = false;

function draw() {
    if (isDue) return;
    isDue = true;
    requestAnimationFrame(() => {
        isDue = false;
        drawFrame();
        drawNotices();
        if (!page.shown) return;
        VIEWS[page.view]();
        if (byId('member-dialog').open) drawMember();
    });
}

function openView() {
    const wanted = location.hash.slice(1), view = Object.hasOwn(VIEWS, wanted) ? wanted : 'overview';
    const isNew = view !== page.view;
    page.view = view;
    for (const name of Object.keys(VIEWS)) byId(`view-${name}`).hidden = name !== view;
    for (const link of byId('nav').children) {
        if (link.hash !== `#${view}`) link.removeAttribute('aria-current');
        else {
            link.setAttribute('aria-current', 'page');
            link.scrollIntoView({block: 'nearest', inline: 'nearest'});
        }
    }
    if (isNew) window.scrollTo(0, 0);
    draw();
}

// --- Controls ---

const darkness = matchMedia('(prefers-color-scheme: dark)');

function setTheme(theme) {
    if (theme) document.documentElement.dataset.theme = theme;
    else delete document.documentElement.dataset.theme;
    setText(byId('theme'), `Theme: ${theme || 'auto'}`);
    extras.run = null;
    draw();
}

function nextTheme() {
    const next = {'': 'light', light: 'dark', dark: ''}[document.documentElement.dataset.theme || ''];
    stored(localStorage, 'theme', next || null);
    setTheme(next);
}

function drawPicks() {
    const box = byId('picks');
    box.hidden = page.runs.length < 2;
    if (box.sight === page.runs) return;
    box.sight = page.runs;
    box.replaceChildren(box.firstElementChild, ...page.runs.map(run => {
        const input = make('input', {type: 'checkbox', checked: run.picked});
        input.addEventListener('change', () => {
            run.picked = input.checked;
            draw();
        });
        const swatch = make('span', {class: 'swatch'});
        swatch.style.color = `var(--${run.color})`;
        return make('label', {}, input, ' ', swatch, run.name);
    }));
}

function drawRunChoice() {
    byId('runs').hidden = page.runs.length < 2;
    byId('run').replaceChildren(...page.runs.map(run =>
        make('option', {value: run.id, selected: run === page.shown}, run.name)));
}

function setAxis(axis) {
    page.axis = axis;
    page.zoom = null;
    draw();
}

function listen() {
    window.addEventListener('hashchange', () => {
        takeToken();
        openView();
    });
    byId('theme').addEventListener('click', nextTheme);
    darkness.addEventListener('change', () => setTheme(document.documentElement.dataset.theme || ''));
    byId('run').addEventListener('change', event => show(page.runs.find(run => run.id === event.target.value)));
    for (const input of document.querySelectorAll('input[name="axis"]'))
        input.addEventListener('change', () => setAxis(input.value));
    byId('smoothing').addEventListener('input', event => {
        page.smoothing = Number(event.target.value);
        setText(byId('smoothing-value'), event.target.value);
        draw();
    });
    for (const name of ['logarithmic', 'marks']) byId(name).addEventListener('change', event => {
        page[name] = event.target.checked;
        charts[page.view].charts.forEach(chart => chart.clear());
        draw();
    });
    byId('unzoom').addEventListener('click', () => charts.charts.zoom(null));
    for (const id of ['member-search', 'member-state']) byId(id).addEventListener('input', () => {
        byId('member-region').scrollTop = 0;
        drawMembers();
    });
    for (const id of ['event-search', 'event-kind']) byId(id).addEventListener('input', drawEventView);
    byId('member-region').addEventListener('scroll', drawRows, {passive: true});
    byId('member-close').addEventListener('click', () => byId('member-dialog').close());
    byId('lanes').addEventListener('click', event => event.target.dataset.id && findEvent(event.target.dataset.id));
    document.addEventListener('visibilitychange', draw);
    window.addEventListener('resize', draw);
}

// --- The link to the run ---

let stop = new AbortController(); // ends the open stream
const MOST_EVENTS = 1024;

class Again extends Error {} // not a failure: request everything again

function setLink(link, text) {
    page.link = link;
    page.linkText = text;
    draw();
}

async function loadRuns() {
    const answer = await ask('runs');
    const before = new Map(page.runs.map(run => [run.id, run])), chosen = page.shown && page.shown.id;
    const fresh = (id, i) => ({id, color: `series-${i % 8 + 1}`, picked: i < 8, points: noPoints(), events: [],
        status: null, about: null, series: new Map()});
    const runs = list(answer.runs).map((each, i) =>
        Object.assign(before.get(word(each.id)) || fresh(word(each.id), i), {name: word(each.name)}));
    if (!runs.length) throw new Refused(404, 'no runs');
    const isSame = runs.length === page.runs.length && runs.every((run, i) => run === page.runs[i]);
    if (!isSame) page.runs = runs;
    page.shown = runs.find(run => run.id === chosen) || runs[0];
    if (!isSame) drawRunChoice();
}

async function load(run) {
    const [status, history, events] = await Promise.all([ask('status', run), ask('history', run), ask('events', run),
        loadAbout(run)]);
    run.status = status;
    run.points = pointsOf(history);
    run.events = list(events.events).slice(-MOST_EVENTS);
    run.asked = Date.now();
    page.skew = status.time - Date.now() / 1000;
    page.answered = now();
}

// Settings are final when training begins, and a rollout changes them.
async function loadAbout(run) {
    try {
        run.about = await ask('about', run);
        draw();
    } catch { /* it is asked for again, or the page does without */ }
}

function takeStatus(run, status) {
    const before = run.status;
    run.status = status;
    page.skew = status.time - Date.now() / 1000;
    page.answered = now();
    if (before && before.started !== status.started) throw new Again();
    const seen = each => `${each.run.state} ${each.run.config_digest} ${each.run.config_version}`;
    if (before && seen(before) !== seen(status)) loadAbout(run);
    recordMembers(run);
    if (run === page.shown && !document.hidden && Date.now() - run.asked >= 1900) growHistory(run);
    draw();
}

// Only what is newer than the last known full second.
async function growHistory(run) {
    run.asked = Date.now();
    const times = run.points.time, since = times.length ? times[times.length - 1] - 2 : 0;
    try {
        const answer = await ask('history', run, since ? {since: since.toFixed(3)} : {});
        if (times.length > MOST_POINTS || !since) run.points = pointsOf(since ? await ask('history', run) : answer);
        else addPoints(run.points, answer.recent);
        draw();
    } catch { /* the stream notices too when nobody answers, and says so */ }
}

function takeEvent(run, event) {
    const last = run.events[run.events.length - 1];
    if (last && event.id <= last.id) return;
    run.events.push(event);
    if (run.events.length > MOST_EVENTS) run.events.shift();
    draw();
}

function takeMessage(run, message) {
    let name = 'message', data = '';
    for (const line of message.split('\n')) {
        if (line.startsWith('event:')) name = line.slice(6).trim();
        if (line.startsWith('data:')) data += line.slice(5);
    }
    if (name === 'status' && data) takeStatus(run, JSON.parse(data));
    if (name === 'event' && data) takeEvent(run, JSON.parse(data));
}

const SILENCE_MS = 15000;

// With fetch, because EventSource sends no token.
async function stream(run) {
    const silence = new AbortController();
    const last = run.events.length ? {'Last-Event-ID': String(run.events[run.events.length - 1].id)} : {};
    const answer = await fetch(address('stream', run), {headers: headers({Accept: 'text/event-stream', ...last}),
        cache: 'no-store', signal: AbortSignal.any([stop.signal, silence.signal])});
    if (!answer.ok) throw new Refused(answer.status, `stream: ${answer.status}`);
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let left = '';
    for (;;) {
        const timer = setTimeout(() => silence.abort(), SILENCE_MS);
        const {done, value} = await reader.read().finally(() => clearTimeout(timer));
        if (done) return;
        const messages = (left + value).replace(/\r\n?/g, '\n').split('\n\n');
        left = messages.pop();
        try {
            for (const message of messages) takeMessage(run, message);
        } catch (error) {
            reader.cancel().catch(() => {});
            throw error;
        }
    }
}

// One round: request everything, then listen until the connection breaks.
async function visit() {
    await loadRuns();
    const run = page.shown;
    await load(run);
    for (const other of page.runs) if (other !== run) await load(other);
    const isStill = run.status.run && run.status.run.role === 'dashboard';
    setLink(isStill ? 'still' : 'live', isStill ? 'from the folder' : 'live');
    if (!isStill) return stream(run);
    await Promise.race([pause(30000), new Promise(resolve => stop.signal.addEventListener('abort', resolve))]);
    throw new Again();
}

async function follow() {
    for (let wait = 500; ; wait = Math.min(wait * 2, 8000)) {
        stop = new AbortController();
        try {
            await visit();
            wait = 500;
        } catch (error) {
            if (error.code === 401) {
                await askToken();
                wait = 0;
                continue;
            }
            if (error instanceof Again || stop.signal.aborted) {
                wait = 0;
                continue;
            }
            if (error instanceof TypeError || error instanceof Refused || error.name === 'AbortError' ||
                error.name === 'TimeoutError') { /* nobody answers, or not yet */
            } else console.error(error);
        }
        if (page.link === 'live') wait = 500;
        if (isEnded(runOf())) setLink('still', 'has ended');
        else setLink(page.answered ? 'lost' : 'wait', page.answered ? 'no answer' : 'connecting');
        await Promise.race([pause(wait), new Promise(resolve => addEventListener('online', resolve, {once: true}))]);
    }
}

function show(run) {
    if (!run || run === page.shown) return;
    page.shown = run;
    extras.run = null;
    stop.abort();
    draw();
}

document.body.append(probe);
takeToken();
listen();
setTheme(stored(localStorage, 'theme') || '');
openView();
follow();
