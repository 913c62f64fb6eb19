import { signal } from '@preact/signals'

export interface Place {
  readonly path: string
  readonly params: URLSearchParams
}

export const place = signal<Place>(here())

function here(): Place {
  return { path: location.pathname, params: new URLSearchParams(location.search) }
}

/** How many steps of this page's own lie behind: going back must never leave it. */
function depth(): number {
  return (history.state as { depth?: number } | null)?.depth ?? 0
}

export function go(href: string, how: 'push' | 'replace' = 'push'): void {
  if (how === 'push') history.pushState({ depth: depth() + 1 }, '', href)
  else history.replaceState({ depth: depth() }, '', href)
  place.value = here()
}

export function back(otherwise: string): void {
  if (depth() > 0) history.back()
  else go(otherwise)
}

export function startRouter(): void {
  window.addEventListener('popstate', () => {
    place.value = here()
  })
  document.addEventListener('click', (event) => {
    if (event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey) return
    const link = (event.target as Element).closest?.('a')
    if (!link || link.origin !== location.origin || link.target !== '' || link.hasAttribute('download')) return
    event.preventDefault()
    if (link.href !== location.href) go(link.href)
  })
}

export function operationHref(id: string): string {
  return `/operations/${encodeURIComponent(id)}`
}
