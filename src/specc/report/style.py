"""The style sheet of all pages: system fonts, light or dark as the reader's system is, one column on
a phone.
"""

STYLE = """
:root{color-scheme:light dark;--ink:#1d2126;--soft:#5b6570;--paper:#fff;--card:#f5f6f8;--line:#d9dde2;
--ok:#0a7a45;--okbg:#e3f4ea;--no:#b3261e;--nobg:#fce8e6;
--c0:#0b62b8;--c1:#c2570c;--c2:#0a7a45;--c3:#8f3fa8;--c4:#a8851a;--c5:#5b6570}
@media(prefers-color-scheme:dark){:root{
--ink:#e8eaed;--soft:#a3adb8;--paper:#14171a;--card:#1d2125;--line:#3a4047;
--ok:#6fd39b;--okbg:#12301f;--no:#ff9087;--nobg:#3a1714;
--c0:#6cb2ff;--c1:#ffa057;--c2:#6fd39b;--c3:#d79cf0;--c4:#e2c35a;--c5:#a3adb8}}
*{box-sizing:border-box}
body{margin:0;font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
body{color:var(--ink);background:var(--paper)}
main{max-width:66rem;margin:0 auto;padding:1rem 1rem 3rem}
header{border-left:.4rem solid var(--ok);background:var(--okbg);padding:.8rem 1.1rem;border-radius:.3rem}
header.no{border-color:var(--no);background:var(--nobg)}
.kicker{margin:0;font-size:.8rem;letter-spacing:.04em;color:var(--soft)}
h1{margin:.1rem 0 .4rem;font-size:1.5rem;line-height:1.25;overflow-wrap:anywhere}
header strong{color:var(--ok)}header.no strong{color:var(--no)}
.why{margin:.2rem 0;font-weight:600;overflow-wrap:anywhere}
.sub{margin:.4rem 0 0;font-size:.85rem;color:var(--soft);overflow-wrap:anywhere}
.mono{font-family:ui-monospace,SFMono-Regular,Menlo,monospace;font-size:.75rem}
h2{font-size:1.15rem;margin:2rem 0 .5rem}
p{margin:.4rem 0}
.wide{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:.85rem;font-variant-numeric:tabular-nums}
th,td{padding:.3rem .6rem;border-bottom:1px solid var(--line);text-align:left;vertical-align:top}
thead th{color:var(--soft);font-weight:600;white-space:nowrap}
.num{text-align:right;white-space:nowrap}
thead th{text-align:right}thead th:first-child,.text thead th,thead th.verdict{text-align:left}
td.what{overflow-wrap:anywhere}
.text .num{text-align:left}.text td:first-child{width:38%}
.verdict .judge th,.verdict .judge td{background:var(--card);font-weight:600}
.verdict td.what{padding-left:1.4rem}
td.ok{color:var(--ok);font-weight:600}td.no{color:var(--no);font-weight:700}
.plots{display:grid;gap:1rem;margin-top:2rem}
.plots{grid-template-columns:repeat(auto-fit,minmax(min(100%,24rem),1fr))}
figure{margin:0;padding:.8rem;background:var(--card);border-radius:.4rem}
figcaption{font-weight:600;margin-bottom:.4rem}
figure p{font-size:.82rem;color:var(--soft)}
svg{display:block;width:100%;height:auto;max-width:34rem}
svg text{font-size:11.5px;fill:var(--ink)}
.grid{stroke:var(--line)}
.line{fill:none;stroke-width:2}.dot{stroke:var(--card);stroke-width:1.2}
.guide{stroke:var(--soft);stroke-dasharray:2 4;stroke-width:1.5}
.s0{stroke:var(--c0)}.s1{stroke:var(--c1);stroke-dasharray:7 3}.s2{stroke:var(--c2);stroke-dasharray:2 2}
.s3{stroke:var(--c3);stroke-dasharray:9 3 2 3}.s4{stroke:var(--c4)}.s5{stroke:var(--c5)}
.dot.s0{fill:var(--c0)}.dot.s1{fill:var(--c1)}.dot.s2{fill:var(--c2)}.dot.s3{fill:var(--c3)}
.dot.s4{fill:var(--c4)}.dot.s5{fill:var(--c5)}
.dot{stroke-dasharray:none!important;stroke:var(--card)!important}
.f0{fill:var(--c0)}.f1{fill:var(--c1)}.f2{fill:var(--c2)}
.f3{fill:var(--c3)}.f4{fill:var(--c4)}.f5{fill:var(--c5)}
.swatch{stroke-width:9;stroke-dasharray:none!important}
.base{stroke:var(--ink);stroke-dasharray:4 3}.whisker{stroke:var(--ink);stroke-width:1.5}
.predicted{fill:var(--paper);stroke:var(--ink);stroke-width:1.5}
.cell.good{fill:var(--okbg);stroke:var(--ok);stroke-width:.6}.cell.bad{fill:var(--no)}
.cell.none{fill:var(--card);stroke:var(--line)}
svg text.sign{text-anchor:middle;font-weight:700;font-size:12px}svg text.sign.bad{fill:var(--paper)}
details{margin-top:1.5rem}summary{cursor:pointer;font-weight:600}
@media(max-width:40rem){main{padding:.7rem .7rem 2rem}body{font-size:15px}h1{font-size:1.25rem}
th,td{padding:.3rem .35rem}.verdict .seed{display:none}table.verdict{font-size:.78rem}
.verdict td.what{padding-left:.6rem}}
@media print{details{display:none}}
"""
