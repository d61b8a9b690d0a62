"""The style of the page: light and dark, narrow and wide, and print. Colours after Okabe and Ito, never alone."""

CSS = """
:root{color-scheme:light dark;--bg:#fbfaf8;--card:#fff;--ink:#1d2126;--soft:#59606a;--line:#e3e0da;--fill:#c9d0d8;
--h0:#1f6fb2;--h1:#b8650b;--h2:#0b7a5c;--h3:#8a4a82;--bad:#b3261e;--look:#8a5a00;--note:#3d6187;--good:#0b6e50}
@media screen and (prefers-color-scheme:dark){:root{--bg:#14161a;--card:#1b1e23;--ink:#e8e6e2;--soft:#a0a7b0;
--line:#2e333a;--fill:#3d4651;--h0:#6db0ea;--h1:#eda350;--h2:#4fc3a1;--h3:#d79ccb;--bad:#ff8d80;--look:#e8b45c;
--note:#93b7dd;--good:#5fcfa8}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;
font-variant-numeric:tabular-nums;overflow-wrap:anywhere}
main{max-width:1280px;margin:auto;padding:32px clamp(16px,4vw,48px) 64px}
h1{font-size:clamp(24px,3.4vw,34px);line-height:1.2;letter-spacing:-.015em;font-weight:650;margin:8px 0 10px}
h2{font-size:17px;margin:0}
h3{font-size:14px;font-weight:600;margin:20px 0 6px}
section>div>h3:first-child,.lane h3,.strip h3,.pair h3{margin-top:0}
p{margin:0 0 8px;max-width:84ch}
small,.soft{font-size:13px;color:var(--soft);font-weight:400}
td small{display:block}
code,pre{font:13px/1.6 ui-monospace,Menlo,Consolas,monospace}
pre{margin:0 0 12px;padding:14px 16px;background:var(--card);border:1px solid var(--line);border-radius:6px;
white-space:pre-wrap}
section{border-top:1px solid var(--line);padding:28px 0}
section>header{margin-bottom:14px}
section>header p{font-size:13px;color:var(--soft);margin-top:4px}
@media(min-width:1000px){
section{display:grid;grid-template-columns:190px minmax(0,1fr);gap:44px}section>header{margin:0}}
.status{font-weight:650;color:var(--c)}
.status b{display:inline-grid;place-items:center;width:22px;height:22px;border-radius:50%;background:var(--c);
color:var(--bg);margin-right:8px;font-size:13px}
.completed{--c:var(--good)}.partial{--c:var(--look)}.failed{--c:var(--bad)}
dl{display:grid;grid-template-columns:repeat(auto-fit,minmax(136px,1fr));gap:8px 18px;margin:0}
dt{font-size:13px;color:var(--soft)}
dd{margin:0}
dl.top{gap:16px 24px;margin:22px 0 28px}
.top dd{font-size:22px;font-weight:600;letter-spacing:-.01em}
.items{list-style:none;margin:0;padding:0}
.items li{display:grid;grid-template-columns:88px minmax(0,1fr);gap:2px 12px;padding:12px 0;
border-bottom:1px solid var(--line)}
.items li:first-child{padding-top:0}
.items li:last-child{border:0;padding-bottom:0}
.items p{margin:0}
.tag{font-size:13px;font-weight:600;color:var(--c);line-height:22px}
.tag b{display:inline-block;width:18px}
.problem{--c:var(--bad)}.look{--c:var(--look)}.note{--c:var(--note)}
.change::before{content:"→ ";color:var(--soft)}
.plot,.axis,.bars{position:relative;margin-left:62px}
.plot svg{width:100%;height:100%;display:block;overflow:visible}
.plot path{vector-effect:non-scaling-stroke;fill:none}
path.grid{stroke:var(--line)}
path.area{fill:var(--fill)}
path.fill{fill:color-mix(in srgb,var(--c) 75%,var(--bg))}
path.pace{--c:var(--h2)}
path.ceiling{stroke:var(--bad);stroke-dasharray:5 4;stroke-width:1.4}
path.memory{stroke:var(--soft);stroke-dasharray:2 4}
path.beyond{fill:var(--bad)}
path.hatch{stroke:var(--bg);stroke-width:1.5}
.plot em{position:absolute;right:0;padding-left:6px;font-size:12px;font-style:normal;line-height:1;
background:var(--bg);transform:translateY(50%)}
em.ceiling{color:var(--bad)}
em.memory{color:var(--soft)}
.tip{position:absolute;top:0;bottom:0}
path.dot{stroke:var(--c,var(--ink));stroke-width:4.5;stroke-linecap:round}
path.range{stroke:var(--c);stroke-width:1.6;opacity:.65}
.side,.axis{font-size:12px;color:var(--soft)}
.side{position:absolute;right:100%;padding-right:8px;transform:translateY(50%);white-space:nowrap}
.axis{height:20px;margin-bottom:18px}
.axis span{position:absolute;top:4px;transform:translateX(-50%);white-space:nowrap}
.axis span:first-child{transform:none}
.pair .axis{margin-bottom:0}
.lane{margin-bottom:26px}
.strip{margin-bottom:16px}
.strip .plot{margin-top:10px}
dl+.strip,details+dl{margin-top:18px}
.lane .plot{margin-top:14px}
.bars{height:26px}
.bars span{position:absolute;overflow:hidden;background:var(--c);border-radius:2px;min-width:2px}
.bars .lease{top:0;height:3px}
.bars .pass{top:5px;height:19px;font-size:12px;line-height:19px;text-indent:6px;white-space:nowrap;
text-overflow:ellipsis;background:color-mix(in srgb,var(--c) 22%,var(--bg))}
.host{--c:var(--soft)}
.bars>b{position:absolute;right:100%;padding-right:8px;top:5px;font-size:12px;font-weight:400;line-height:19px;
color:var(--soft);white-space:nowrap}
i{font-style:normal;color:var(--soft)}
i.bad{color:var(--bad)}
.marks{position:absolute;top:100%;left:0;right:0}
.marks i{position:absolute;top:2px;font-size:11px;line-height:14px;transform:translateX(-50%);white-space:nowrap}
.legend{max-width:none;display:flex;flex-wrap:wrap;gap:2px 18px;font-size:13px;color:var(--soft);margin-bottom:16px}
.legend b{display:inline-block;width:11px;height:11px;border-radius:2px;background:var(--c);margin-right:6px}
.h0{--c:var(--h0)}.h1{--c:var(--h1)}.h2{--c:var(--h2)}.h3{--c:var(--h3)}
.s-start{--c:var(--soft)}.s-load,.s-split{--c:var(--h2)}.s-model,.s-moving{--c:var(--h1)}
.s-moving,.s-split{opacity:.6}.s-forward{--c:var(--h0)}.s-wait{--c:color-mix(in srgb,var(--h0) 45%,var(--bg))}
.s-encoding{--c:color-mix(in srgb,var(--h0) 70%,var(--ink))}
.s-export{--c:var(--h3)}.s-check{--c:var(--note)}.s-other{--c:var(--fill)}
.whiskers{display:grid;grid-template-columns:minmax(0,max-content) minmax(160px,1fr) max-content;gap:2px 14px;
align-items:center;margin:18px 0 4px;font-size:14px}
.whiskers .plot{height:20px;margin:0}
.whiskers .axis{margin:0}
.whiskers path.range{stroke-width:2.4}
.whiskers path.dot{stroke-width:9}
.stack{display:flex;height:20px;gap:2px}
.stack span{background:var(--c);border-radius:2px;min-width:1px}
.wide{overflow-x:auto;margin-bottom:8px}
table{border-collapse:collapse;width:100%;font-size:14px}
th{font-size:12px;font-weight:500;color:var(--soft);text-align:left;padding:0 18px 6px 0;white-space:nowrap}
td{padding:7px 18px 7px 0;border-top:1px solid var(--line);vertical-align:top;max-width:60ch;overflow-wrap:break-word}
td small{overflow-wrap:anywhere}
td:first-child{min-width:14ch}
td.n:first-child{min-width:0}
.n{text-align:right;white-space:nowrap}
th:last-child,td:last-child{padding-right:0}
.pair{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(320px,100%),1fr));gap:26px 40px;margin-bottom:26px}
details{margin-top:12px}
summary{cursor:pointer;font-size:14px;margin-bottom:8px}
.broken{border-left:3px solid var(--look);padding-left:12px;margin-bottom:22px}
:focus-visible{outline:2px solid var(--h0);outline-offset:2px}
@media(max-width:600px){.whiskers{grid-template-columns:minmax(0,1fr) max-content}
.whiskers>span{grid-column:1/-1;margin-top:4px}.whiskers>b:first-of-type{display:none}
.items li{grid-template-columns:1fr}.plot,.axis,.bars{margin-left:54px}table{min-width:560px}
h3 small{display:block}}
@media print{:root{--bg:#fff}body{font-size:10.5pt;print-color-adjust:exact;-webkit-print-color-adjust:exact}
main{padding:0 16px}section{padding:14px 0;display:block}.lane,.strip,tr,.items li,.pair>div{break-inside:avoid}
h2,h3{break-after:avoid}.wide{overflow:visible}table{font-size:9pt;min-width:0}th{white-space:normal}
th,td{padding-right:10px;overflow-wrap:anywhere}td:first-child{min-width:10ch}details:not([open]){display:none}}
"""
