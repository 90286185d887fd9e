// Plays a chart's curves as sound on request, one series after another, from left to right. The pitch follows the value on the
// logarithmic axis. Plays the same data as the chart draws. Nothing plays by itself.
const LOW_HZ = 220, OCTAVES = 3, SERIES_S = 2, PAUSE_S = 0.35, VOLUME = 0.08, FADE_S = 0.03;

function specification(figure) {
  return JSON.parse(figure.querySelector("[data-spec]")?.dataset.spec ?? "{}");
}

function domainOf(spec) {
  return spec.layer?.map((layer) => layer.encoding?.y?.scale?.domain).find(Array.isArray) ?? [0.01, 10];
}

function seriesOf(rows) {
  const [head, ...lines] = csvLines(rows);
  const at = (name) => head.indexOf(name), found = new Map();
  for (const line of lines) {
    const [label, x, y] = [line[at("label")], Number(line[at("x")]), Number(line[at("y")])];
    if (!(y > 0 && Number.isFinite(x))) continue;
    if (!found.has(label)) found.set(label, []);
    found.get(label).push([x, y]);
  }
  return found;
}

// The experiment's first chart with lines, from the current run.
function curvesOf(lab) {
  for (const figure of lab?.querySelectorAll(".lab-figure:not(.lab-kept)") ?? []) {
    const spec = specification(figure), rows = spec.datasets?.rows;
    if (typeof rows !== "string") continue;
    const series = seriesOf(rows);
    if (series.size) return { series, domain: domainOf(spec), caption: figure.querySelector("figcaption").textContent };
  }
  return null;
}

export function pitch(y, domain) {
  const [low, high] = [Math.min(...domain), Math.max(...domain)].map(Math.log);
  const height = (Math.log(y) - low) / (high - low);
  return LOW_HZ * 2 ** (OCTAVES * Math.min(1, Math.max(0, height)));
}

function tone(audio, points, domain, most, ended) {
  const oscillator = audio.createOscillator(), volume = audio.createGain(), begin = audio.currentTime + 0.05;
  const when = (x) => begin + (SERIES_S * x) / most;
  oscillator.frequency.setValueAtTime(pitch(points[0][1], domain), begin);
  for (const [x, y] of points) oscillator.frequency.exponentialRampToValueAtTime(pitch(y, domain), Math.max(when(x), begin + 0.001));
  const end = Math.max(when(points.at(-1)[0]), begin + 4 * FADE_S);
  volume.gain.setValueAtTime(0, begin);
  volume.gain.linearRampToValueAtTime(VOLUME, begin + FADE_S);
  volume.gain.setValueAtTime(VOLUME, end);
  volume.gain.linearRampToValueAtTime(0, end + FADE_S);
  oscillator.connect(volume).connect(audio.destination);
  oscillator.onended = ended;
  oscillator.start(begin);
  oscillator.stop(end + FADE_S);
  return oscillator;
}

function render({ el }) {
  const title = "Plays one curve after another: the tone falls as the loss falls";
  const button = labButton("Hear the curves", { title, press }), says = statusLine();
  let audio = null, sounding = null, next = 0;

  function stop(words) {
    clearTimeout(next);
    if (sounding) {
      sounding.onended = null;
      sounding.stop();
    }
    audio?.close();
    audio = sounding = null;
    button.textContent = "Hear the curves";
    says.textContent = words;
  }

  function play({ series, domain, caption }) {
    const names = [...series.keys()], most = Math.max(...[...series.values()].flat().map(([x]) => x)) || 1;
    audio = new AudioContext();
    button.textContent = "Stop the sound";
    const from = (number) => {
      if (number === names.length) return stop(`Played: ${caption}, ${names.join(", ")}. Low is good.`);
      says.textContent = `${names[number]}, ${number + 1} of ${names.length}`;
      const ended = () => { next = setTimeout(() => from(number + 1), 1000 * PAUSE_S); };
      sounding = tone(audio, series.get(names[number]), domain, most, ended);
    };
    from(0);
  }

  function press() {
    if (audio) return stop("Stopped.");
    const curves = curvesOf(el.getRootNode().host?.closest(".lab"));
    if (!curves) says.textContent = "No curves yet; wait for the first one.";
    else if (!window.AudioContext) says.textContent = "This browser cannot play sound from a page; open the page in another one.";
    else play(curves);
  }
  el.append(button, says);
  return () => stop("");
}
export default { render };
